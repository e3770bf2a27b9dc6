"""What a prompt gains and loses at several ratios, or with several forecasts: curves, images and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from PIL import Image

from tomadiff.evaluation.metrics.distances import metric
from tomadiff.evaluation.report.curves import Point, Series, chart
from tomadiff.evaluation.report.markup import Markup, data_uri, tag
from tomadiff.web.metric_cards import written

RATIOS = (0.25, 0.5, 0.75)
MOST_CURVES = 2  # metrics; the table has them all
_THUMB = 160  # pixels


@dataclass(frozen=True)
class Across:
    """What the horizontal axis shows, and what is said of a place on it: "25% merged"."""

    title: str
    word: str

    def at(self, place: float) -> str:
        """A place in words."""
        return f"{place:.0%} {self.word}"


MERGED, COMPUTED = Across("tokens merged", "merged"), Across("steps computed", "of the steps")


@dataclass(frozen=True)
class Shot:
    """An image, its place on the axis, its seconds, and how far it is from the full one; that one has no metrics."""

    image: Image.Image
    place: float
    seconds: float
    metrics: dict[str, float]


def ratios(chosen: float) -> list[float]:
    """Those of the curve, the chosen one among them."""
    return sorted({*RATIOS, chosen} - {0.0})


def curves(title: str, full: Shot, shots: Sequence[Shot], across: Across = MERGED) -> Markup:
    """The images, the first metrics over the axis and over seconds, and all of them as a table."""
    names, placed = list(shots[0].metrics), sorted(shots, key=_place)
    charts = [one for name in names[:MOST_CURVES] for one in _charts(title, name, full, placed, across)]
    return tag(
        "div",
        tag("div", [_thumb(shot, across) for shot in (full, *placed)], class_="thumbs"),
        tag("div", [tag("div", one, class_="panel") for one in charts], class_="charts"),
        _table([full, *placed], names, across),
    )


def _charts(title: str, name: str, full: Shot, shots: Sequence[Shot], across: Across) -> list[Markup]:
    up, series = metric(name).title, partial(_series, title, name, shots, across)
    return [
        chart(f"{up} over the share of {across.title}", across.title, up, [series(_place)],
              write="{:.0%}".format, exact=True),
        chart(f"{up} over seconds", "seconds per image", up, [series(_time)], full.seconds),
    ]  # fmt: skip


def _place(shot: Shot) -> float:
    return shot.place


def _time(shot: Shot) -> float:
    return shot.seconds


def _series(title: str, name: str, shots: Sequence[Shot], across: Across, where: Callable[[Shot], float]) -> Series:
    points = []
    for shot in shots:
        value = shot.metrics[name]
        label = f"{title}, {across.at(shot.place)}: {written(name, value)} in {shot.seconds:.2f} s"
        points.append(Point(where(shot), value, value, value, label))
    return Series(title, tuple(points))


def _thumb(shot: Shot, across: Across) -> Markup:
    name = across.at(shot.place) if shot.metrics else "in full"
    image = tag("img", src=data_uri(shot.image, 2 * _THUMB), alt=name)
    return tag("figure", image, tag("figcaption", tag("b", name), f"{shot.seconds:.2f} s"))


def _table(shots: Sequence[Shot], names: Sequence[str], across: Across) -> Markup:
    heads = [across.title, "seconds", *(metric(name).title for name in names)]
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in heads]))
    table = tag("table", head, tag("tbody", [tag("tr", _row(shot, names)) for shot in shots]))
    return tag("div", table, class_="scroll", role="region", aria_label="The metrics of the curve", tabindex=0)


def _row(shot: Shot, names: Sequence[str]) -> list[Markup]:
    values = [written(name, shot.metrics[name]) if shot.metrics else "–" for name in names]
    lead = tag("th", f"{shot.place:.0%}", scope="row")
    return [lead, *(tag("td", text) for text in (f"{shot.seconds:.2f}", *values))]
