"""What a prompt gains and loses at several ratios: curves, images and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from tomadiff.evaluation.metrics.table import metric
from tomadiff.evaluation.report.curves import Point, Series, chart
from tomadiff.evaluation.report.markup import Markup, data_uri, tag
from tomadiff.web.metric_cards import written

RATIOS = (0.25, 0.5, 0.75)
MOST_CURVES = 2  # metrics; the table has them all
_THUMB = 160  # pixels


@dataclass(frozen=True)
class Shot:
    """The image at one ratio, its seconds, and how far it is from the unmerged one; that one has no metrics."""

    image: Image.Image
    ratio: float
    seconds: float
    metrics: dict[str, float]


def ratios(chosen: float) -> list[float]:
    """Those of the curve, the chosen one among them."""
    return sorted({*RATIOS, chosen} - {0.0})


def curves(title: str, unmerged: Shot, shots: Sequence[Shot]) -> Markup:
    """The images, the first metrics over the share of tokens and over seconds, and all of them as a table."""
    names = list(shots[0].metrics)
    charts = [one for name in names[:MOST_CURVES] for one in _charts(title, name, unmerged, shots)]
    return tag(
        "div",
        tag("div", [_thumb(unmerged), [_thumb(shot) for shot in shots]], class_="thumbs"),
        tag("div", [tag("div", one, class_="panel") for one in charts], class_="charts"),
        _table(unmerged, shots, names),
    )


def _charts(title: str, name: str, unmerged: Shot, shots: Sequence[Shot]) -> list[Markup]:
    up = metric(name).title
    return [
        chart(f"{up} over the share of tokens merged", "tokens merged", up, [_series(title, name, shots, _share)],
              write="{:.0%}".format, exact=True),
        chart(f"{up} over seconds", "seconds per image", up, [_series(title, name, shots, _time)], unmerged.seconds),
    ]  # fmt: skip


def _share(shot: Shot) -> float:
    return shot.ratio


def _time(shot: Shot) -> float:
    return shot.seconds


def _series(title: str, name: str, shots: Sequence[Shot], across: Callable[[Shot], float]) -> Series:
    points = []
    for shot in shots:
        value = shot.metrics[name]
        label = f"{title}, {shot.ratio:.0%} merged: {written(name, value)} in {shot.seconds:.2f} s"
        points.append(Point(across(shot), value, value, value, label))
    return Series(title, tuple(points))


def _thumb(shot: Shot) -> Markup:
    name = f"{shot.ratio:.0%} merged" if shot.metrics else "unmerged"
    image = tag("img", src=data_uri(shot.image, 2 * _THUMB), alt=name)
    return tag("figure", image, tag("figcaption", tag("b", name), f"{shot.seconds:.2f} s"))


def _table(unmerged: Shot, shots: Sequence[Shot], names: Sequence[str]) -> Markup:
    heads = ["merged", "seconds", *(metric(name).title for name in names)]
    rows = [_row(shot, names) for shot in (unmerged, *shots)]
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in heads]))
    table = tag("table", head, tag("tbody", [tag("tr", row) for row in rows]))
    return tag("div", table, class_="scroll", role="region", aria_label="The metrics of the curve", tabindex=0)


def _row(shot: Shot, names: Sequence[str]) -> list[Markup]:
    values = [written(name, shot.metrics[name]) if shot.metrics else "–" for name in names]
    lead = tag("th", f"{shot.ratio:.0%}", scope="row")
    return [lead, *(tag("td", text) for text in (f"{shot.seconds:.2f}", *values))]
