"""What is paid for time: charts of metrics over the share merged, seconds and FLOPs, a line for each method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tomadiff.evaluation.metrics.distances import metric
from tomadiff.evaluation.metrics.table import Row
from tomadiff.evaluation.report.curves import Point, Series, chart, marker
from tomadiff.evaluation.report.markup import Markup, joined, tag
from tomadiff.evaluation.report.report import LoadedRun, heading, title_of


def _big(value: float) -> str:
    return f"{value / 1e12:g} T" if value >= 1e11 else f"{value / 1e9:g} G"


AXES: dict[str, tuple[str, Callable[[float], str]]] = {
    "ratio": ("tokens merged", "{:.0%}".format),
    "seconds": ("seconds per image", "{:g}".format),
    "flops": ("FLOPs per image", _big),
}
"""What a chart may run over, with its words and how its numbers are written."""


def trade_off(runs: Sequence[LoadedRun], names: Sequence[str], across: Sequence[str] = tuple(AXES)) -> Markup | None:
    """Charts of metrics over the share merged, over seconds, and over FLOPs where they were counted."""
    rows = [row for loaded in runs for row in loaded.merged]
    known = [axis for axis in across if axis == "ratio" or any(getattr(row, axis) for row in rows)]
    charts = [_chart(runs, name, axis) for name in names for axis in known]
    if not charts:
        return None
    return joined([_legend(runs), tag("div", [tag("div", one, class_="panel") for one in charts], class_="charts")])


def _chart(runs: Sequence[LoadedRun], name: str, across: str) -> Markup:
    words, write = AXES[across]
    base = None if across == "ratio" else runs[0].full
    mark = None if base is None else getattr(base, across) or None
    title, series = f"{metric(name).title} over {words}", _series(runs, name, across)
    return chart(title, words, heading(name), series, mark, write, exact=across == "ratio")


def _series(runs: Sequence[LoadedRun], name: str, across: str) -> list[Series]:
    lines = [(title, [row for row in rows if name in row.metrics]) for title, rows in _lines(runs)]
    return [Series(title, tuple(_point(row, name, across, title) for row in rows)) for title, rows in lines if rows]


def _lines(runs: Sequence[LoadedRun]) -> list[tuple[str, list[Row]]]:
    """Rows by run and method, by ratio."""
    found: dict[str, list[Row]] = {}
    for loaded in runs:
        prefix = f"{loaded.name}: " if len(runs) > 1 else ""
        for row in loaded.merged:
            found.setdefault(prefix + title_of(row.method), []).append(row)
    return [(title, sorted(rows, key=lambda row: row.ratio)) for title, rows in found.items()]


def _point(row: Row, name: str, across: str, title: str) -> Point:
    interval = row.metrics[name]
    merged = f", {row.ratio:.0%} merged" if row.ratio else ""
    label = f"{title}{merged}: {interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
    return Point(float(getattr(row, across)), interval.value, interval.low, interval.high, label)


def _legend(runs: Sequence[LoadedRun]) -> Markup:
    items = []
    for place, (title, _) in enumerate(_lines(runs)):
        shape = tag("svg", marker(place, 8, 8), viewBox="0 0 16 16", class_=f"s{place % 8}", aria_hidden="true")
        items.append(tag("li", shape, title))
    return tag("ul", items, class_="legend")
