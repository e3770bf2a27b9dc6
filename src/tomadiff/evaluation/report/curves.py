"""Trade-off curves as SVG inside a page: lines, markers, confidence intervals, and no library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tomadiff.evaluation.report.markup import Markup, tag

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 14, 46


@dataclass(frozen=True)
class Point:
    """A value with its interval, and what to say about it."""

    x: float
    y: float
    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Series:
    """Points that belong together, in order of ``x``."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Axis:
    """A range of values, its ticks, and its place on the chart."""

    title: str
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value is placed."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        """Round numbers inside the range."""
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def chart(
    title: str,
    across: str,
    up: str,
    series: Sequence[Series],
    full: float | None = None,
    write: Callable[[float], str] = "{:g}".format,
    exact: bool = False,
) -> Markup:
    """One chart.

    Args:
        title: of the chart.
        across: of the horizontal axis.
        up: of the vertical axis.
        series: what is shown.
        full: a place on the horizontal axis to mark with a dashed line.
        write: how places on the horizontal axis are written.
        exact: whether its ticks stand at the places that some point has, such as ratios, and not at round numbers.
    """
    points = [point for one in series for point in one.points]
    wide = [point.x for point in points] + ([] if full is None else [full])
    x = _axis(across, wide, LEFT, WIDTH - RIGHT)
    y = _axis(up, [end for point in points for end in (point.low, point.high)], HEIGHT - BOTTOM, TOP)
    parts = [tag("title", title), _grid(x, y, _apart(x, wide) if exact else x.ticks, write)]
    if full is not None:
        parts.append(_mark(x.at(full)))
    parts += [_line(one, number, x, y) for number, one in enumerate(series)]
    return tag("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, class_="chart")


def _axis(title: str, values: Sequence[float], start: float, end: float) -> Axis:
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return Axis(title, low - margin, high + margin, start, end)


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return size * next(step for step in (1, 2, 2.5, 5, 10) if rough <= step * size * (1 + 1e-9))


def _apart(x: Axis, values: Sequence[float], least: float = 34) -> list[float]:
    """Those of ``values`` that leave space for a number between them."""
    kept: list[float] = []
    for value in sorted(set(values)):
        if not kept or x.at(value) - x.at(kept[-1]) >= least:
            kept.append(value)
    return kept


def _grid(x: Axis, y: Axis, marks: Sequence[float], write: Callable[[float], str]) -> list[Markup]:
    floor = HEIGHT - BOTTOM
    lines = [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y.at(v), y2=y.at(v), class_="rule") for v in y.ticks]
    heights = [tag("text", _short(v), x=LEFT - 8, y=y.at(v) + 4, text_anchor="end") for v in y.ticks]
    places = [tag("text", write(round(v, 10)), x=x.at(v), y=floor + 18, text_anchor="middle") for v in marks]
    middle = (TOP + floor) / 2
    names = [
        tag("text", x.title, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle", class_="axis"),
        tag("text", y.title, transform=f"translate(14 {middle}) rotate(-90)", text_anchor="middle", class_="axis"),
    ]
    return [
        *lines,
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor, class_="base"),
        *heights,
        *places,
        *names,
    ]


def _short(value: float) -> str:
    return f"{round(value, 10):g}"


def _mark(place: float) -> Markup:
    line = tag("line", x1=place, x2=place, y1=TOP, y2=HEIGHT - BOTTOM, class_="full")
    end = place > (LEFT + WIDTH) / 2
    text = tag("text", "in full", x=place + (-6 if end else 6), y=TOP + 12, text_anchor="end" if end else "start")
    return tag("g", line, text)


def _line(one: Series, number: int, x: Axis, y: Axis) -> Markup:
    path = " ".join(f"{x.at(point.x)},{y.at(point.y)}" for point in one.points)
    parts = [tag("polyline", points=path, fill="none", class_="curve")]
    for point in one.points:
        parts.append(_dot(point, number, x, y))
    return tag("g", parts, class_=f"series s{number % 8}")


def _dot(point: Point, number: int, x: Axis, y: Axis) -> Markup:
    across, low, high = x.at(point.x), y.at(point.low), y.at(point.high)
    bar = tag("line", x1=across, x2=across, y1=low, y2=high, class_="interval")
    return tag("g", tag("title", point.label), bar, marker(number, across, y.at(point.y)))


def marker(number: int, x: float, y: float) -> Markup:
    """A shape of the series' own, so that colour is not all that tells lines apart."""
    kind = number % 4
    if kind == 0:
        return tag("circle", cx=x, cy=y, r=5, class_="dot")
    corners = {
        1: ((-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)),
        2: ((0, -6.5), (6.5, 0), (0, 6.5), (-6.5, 0)),
        3: ((0, -6), (5.8, 4.5), (-5.8, 4.5)),
    }[kind]
    return tag("polygon", points=" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners), class_="dot")
