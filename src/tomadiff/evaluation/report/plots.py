"""Line charts and matrices as images, made with Pillow alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tomadiff.evaluation.report.curves import Axis
from tomadiff.evaluation.report.figures import FAINT, GAP, GONE, INK, MARGIN, PAPER, write

Colour = tuple[int, int, int]
Numbers = npt.NDArray[np.float64]

COLOURS: tuple[Colour, ...] = (  # those of the report's page, in the same order
    (33, 89, 196),
    (196, 81, 10),
    (11, 125, 95),
    (138, 47, 176),
    (151, 112, 10),
    (184, 38, 79),
    (13, 120, 150),
    (91, 95, 102),
)
_FINE = 2  # rendered this much larger and then reduced, which makes lines smooth
_HEAD, _LEFT, _FLOOR, _DASH = 62, 70, 62, 9
_LETTER = 17


@dataclass(frozen=True)
class Line:
    """A curve ``(x, y), …`` and the name it has in the legend; ``dots`` are values of ``x`` that are marked on it."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: Colour
    dashed: bool = False
    dots: frozenset[float] = frozenset()


def line_chart(
    title: str,
    note: str,
    across: str,
    lines: Sequence[Line],
    size: tuple[int, int] = (760, 430),
    percent: bool = True,
) -> Image.Image:
    """Lines over whole numbers such as steps; the legend stands below the title, ``across`` below the axis."""
    canvas = Image.new("RGB", (size[0] * _FINE, size[1] * _FINE), PAPER)
    top = _HEAD + 14 + 26 * _rows_of_legend(lines, size[0])
    x, y = _axes(across, lines, size, top)
    _ruled(canvas, x, y, "{:.0%}".format if percent else "{:g}".format)
    for line in lines:
        _curve(canvas, line, x, y)
    _headed(canvas, title, note)
    _legend(canvas, lines, size[0])
    return canvas.resize(size, Image.Resampling.LANCZOS)


def matrix_chart(title: str, note: str, values: Numbers, steps: Sequence[int], low: float) -> Image.Image:
    """A square of shares ``(T, T)``, from ``low`` (pale) to 1 (dark), with the numbers of the steps on both sides."""
    side = 300
    canvas = Image.new("RGB", ((_LEFT + side + 20) * _FINE, (_HEAD + side + 104) * _FINE), PAPER)
    canvas.paste(_shaded(values, low, side * _FINE), (_LEFT * _FINE, _HEAD * _FINE))
    cell = side / len(steps)
    for place in _few(len(steps)):
        middle = (place + 0.5) * cell
        _words(canvas, (_LEFT + middle, _HEAD + side + 16), str(steps[place]), FAINT)
        _words(canvas, (_LEFT - 20, _HEAD + middle), str(steps[place]), FAINT)
    _words(canvas, (_LEFT + side / 2, _HEAD + side + 38), "step", INK)
    _scale(canvas, low, (_LEFT, _HEAD + side + 60, side))
    _headed(canvas, title, note)
    return canvas.resize((canvas.width // _FINE, canvas.height // _FINE), Image.Resampling.LANCZOS)


def sheet(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Rows of charts on one page."""
    width = max(sum(one.width for one in row) + GAP * (len(row) - 1) for row in rows)
    height = sum(max(one.height for one in row) for row in rows) + GAP * (len(rows) - 1)
    page = Image.new("RGB", (width + 2 * MARGIN, height + 2 * MARGIN), PAPER)
    top = MARGIN
    for row in rows:
        left = MARGIN
        for one in row:
            page.paste(one, (left, top))
            left += one.width + GAP
        top += max(one.height for one in row) + GAP
    return page


# ---------------------------------------------------------------------------------------------- words
def _words(canvas: Image.Image, at: tuple[float, float], text: str, colour: Colour, anchor: str = "mm") -> None:
    write(canvas, (round(at[0] * _FINE), round(at[1] * _FINE)), text, colour, _LETTER * _FINE, anchor)


def _headed(canvas: Image.Image, title: str, note: str) -> None:
    write(canvas, (0, 0), title, INK, 24 * _FINE)
    write(canvas, (0, 32 * _FINE), note, FAINT, _LETTER * _FINE)


def _places_in_legend(lines: Sequence[Line], width: int) -> list[tuple[int, int]]:
    """Left edge and row of every name."""
    places, left, row = [], 0, 0
    for line in lines:
        wide = 60 + 9 * len(line.name)
        if left and left + wide > width:
            left, row = 0, row + 1
        places.append((left, row))
        left += wide
    return places


def _rows_of_legend(lines: Sequence[Line], width: int) -> int:
    return _places_in_legend(lines, width)[-1][1] + 1


def _legend(canvas: Image.Image, lines: Sequence[Line], width: int) -> None:
    for line, (left, row) in zip(lines, _places_in_legend(lines, width), strict=True):
        middle = _HEAD + 12 + 26 * row
        _stroke(canvas, [(left, middle), (left + 34, middle)], line)
        _words(canvas, (left + 42, middle), line.name, INK, "lm")


# ---------------------------------------------------------------------------------------------- lines
def _axes(across: str, lines: Sequence[Line], size: tuple[int, int], top: int) -> tuple[Axis, Axis]:
    places = [x for line in lines for x, _ in line.points]
    values = [y for line in lines for _, y in line.points]
    margin = (max(values) - min(values)) * 0.08 or 0.01
    x = Axis(across, min(places), max(max(places), min(places) + 1), _LEFT, size[0] - 24)
    return x, Axis("", min(values) - margin, max(values) + margin, size[1] - _FLOOR, top)


def _ruled(canvas: Image.Image, x: Axis, y: Axis, written: Callable[[float], str]) -> None:
    pen = ImageDraw.Draw(canvas)
    for value in y.ticks:
        height = y.at(value) * _FINE
        pen.line([(x.start * _FINE, height), (x.end * _FINE, height)], fill=GONE, width=_FINE)
        _words(canvas, (x.start - 10, y.at(value)), written(round(value, 10)), FAINT, "rm")
    for value in (tick for tick in x.ticks if tick == round(tick)):
        _words(canvas, (x.at(value), y.start + 16), f"{value:.0f}", FAINT)
    _words(canvas, ((x.start + x.end) / 2, y.start + 40), x.title, INK)


def _curve(canvas: Image.Image, line: Line, x: Axis, y: Axis) -> None:
    _stroke(canvas, [(x.at(across), y.at(up)) for across, up in line.points], line)
    pen = ImageDraw.Draw(canvas)
    for across, up in line.points:
        if across in line.dots:
            left, top = x.at(across) * _FINE, y.at(up) * _FINE
            radius = 5 * _FINE
            box = (left - radius, top - radius, left + radius, top + radius)
            pen.ellipse(box, fill=line.colour, outline=PAPER, width=_FINE)


def _stroke(canvas: Image.Image, points: Sequence[tuple[float, float]], line: Line) -> None:
    pen = ImageDraw.Draw(canvas)
    fine = np.asarray(points) * _FINE
    parts = _dashes(fine, _DASH * _FINE) if line.dashed else [fine]
    for part in parts:
        pen.line([(float(left), float(top)) for left, top in part], line.colour, 3 * _FINE, joint="curve")


def _dashes(points: Numbers, length: float) -> list[Numbers]:
    """A path ``(n, 2)`` cut into pieces, every other one left out."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    starts = np.arange(0, along[-1], 2 * length)
    return [
        np.stack([np.interp(np.linspace(start, start + length, 8), along, axis) for axis in points.T], 1)
        for start in starts
    ]


# ---------------------------------------------------------------------------------------------- matrices
def _shaded(values: Numbers, low: float, side: int) -> Image.Image:
    share = ((values - low) / max(1 - low, 1e-9)).clip(0, 1)[..., None]
    pale, dark = np.array((236, 240, 248)), np.array((16, 44, 110))
    colours = (pale + (dark - pale) * share).round().astype(np.uint8)
    return Image.fromarray(colours).resize((side, side), Image.Resampling.NEAREST)


def _scale(canvas: Image.Image, low: float, box: tuple[int, int, int]) -> None:
    """What the shades mean: a bar from the lowest share to all."""
    left, top, width = box
    ramp = np.linspace(low, 1, 64)[None]
    bar = _shaded(ramp, low, 64).resize((width * _FINE, 12 * _FINE), Image.Resampling.BILINEAR)
    canvas.paste(bar, (left * _FINE, top * _FINE))
    _words(canvas, (left, top + 26), f"chance: {low:.0%}", FAINT, "lm")
    _words(canvas, (left + width, top + 26), "all: 100%", FAINT, "rm")


def _few(count: int) -> list[int]:
    """Places to letter: first, last and some between."""
    every = max(1, round(count / 5))
    return list(range(0, count, every))
