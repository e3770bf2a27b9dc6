"""One figure per method: which tokens stay, who joined whom, and what comes back."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from tomadiff.evaluation.report.figures import (
    FAINT,
    GAP,
    GONE,
    INK,
    MARGIN,
    PAPER,
    Bytes,
    MergeSample,
    as_grid,
    cluster_panel,
    clusters,
    destination_panel,
    merge_sample,
    write,
)
from tomadiff.evaluation.runs.synthetic_image import Pixels, to_colours
from tomadiff.merging.grid import Grid
from tomadiff.methods.base import Method
from tomadiff.methods.registry import CATALOGUE, named

SIDE = 64
"""Tokens per side: what SDXL and Flux see of 1024² pixels."""

METHODS_SHOWN = ("toma", "toma-paper", "toma-stripe", "toma-whole", "tomesd", "tofu", "todo", "bound")
"""Entries of the catalogue that move tokens differently; the others share a figure with one of them."""

CELL, CROP = 24, (20, 16, 16)  # pixels per enlarged token; left, top and side of the part that is enlarged, in tokens
WIDE, HEADING, CAPTION = CELL * CROP[2], 74, 40
LINE, FRAME, FAR = (255, 214, 64), (255, 94, 58), 5  # joins over more than FAR tokens are shown as stubs
CAPTIONS = (
    "Tokens that stay; the others are blank",
    "Framed part: what each token joined (red: far)",
    "Merged and unmerged, a line between clusters",
)
WARNINGS = {
    "bound": "its matrices are random: the figure means nothing, only the time does",
    "todo": "no query is lost",
    "tofu": "shown as in late blocks: early ones prune instead",
}


def method_figure(name: str, image: Pixels, ratio: float = 0.5, side: int = SIDE) -> Image.Image:
    """The method ``name`` of the catalogue at ``ratio``, on ``image`` as ``side``² tokens."""
    method, _ = named(name, ratio)
    sample = merge_sample(image, method, side, repeats=1)
    canvas = Image.new("RGB", (2 * MARGIN + 3 * WIDE + 2 * GAP, 2 * MARGIN + HEADING + WIDE + CAPTION), PAPER)
    title = CATALOGUE[name].title
    write(canvas, (MARGIN, MARGIN - 10), f"{title[0].upper()}{title[1:]}, {method.ratio:.0%} merged", INK, 28)
    write(canvas, (MARGIN, MARGIN + 28), _note(name, sample, method), FAINT, 18)
    panels = (
        _framed(destination_panel(sample, WIDE), sample.grid),
        joining_panel(sample, image),
        _framed(cluster_panel(sample, WIDE), sample.grid),
    )
    for place, (panel, caption) in enumerate(zip(panels, CAPTIONS, strict=True)):
        left = MARGIN + place * (WIDE + GAP)
        canvas.paste(panel, (left, MARGIN + HEADING))
        write(canvas, (left, MARGIN + HEADING + WIDE + 10), caption, FAINT, 17)
    return canvas


def _note(name: str, sample: MergeSample, method: Method) -> str:
    after = "supply keys and values" if method.pools else "stay"
    counts = f"{sample.kept} of {sample.grid.tokens} tokens {after}; colours come back with {sample.psnr:.1f} dB"
    return f"{counts}; {WARNINGS[name]}" if name in WARNINGS else counts


def joining_panel(sample: MergeSample, image: Pixels) -> Image.Image:
    """A part of the grid enlarged: tokens in their own colours, and a line from each to the one it joined."""
    grid = sample.grid
    left, top, side = _crop(grid)
    colours = as_grid(to_colours(image, grid.height), grid)[top : top + side, left : left + side]
    panel = _cells(colours)
    pen, step, goals = ImageDraw.Draw(panel), WIDE / side, destination_of_each(sample)
    for row, column in np.ndindex(side, side):
        goal = divmod(int(goals[top + row, left + column]), grid.width)
        _join(pen, (row, column), (goal[0] - top, goal[1] - left), step)
    stays = np.isin(np.arange(grid.tokens), sample.plan.destinations[0].cpu().numpy()).reshape(grid.height, -1)
    for row, column in np.argwhere(stays[top : top + side, left : left + side]):
        _dot(pen, _centre(row, column, step), step / 5)
    return panel


def _join(pen: ImageDraw.ImageDraw, token: tuple[int, int], goal: tuple[int, int], step: float) -> None:
    """A line from a token to its destination; a stub in its direction where that is far, or the panel would fill up."""
    start, end = _centre(*token, step), _centre(*goal, step)
    away = math.dist(token, goal)
    if away > FAR:
        end = (start[0] + (end[0] - start[0]) * 0.8 / away, start[1] + (end[1] - start[1]) * 0.8 / away)
    pen.line([start, end], fill=FRAME if away > FAR else LINE, width=2)


def destination_of_each(sample: MergeSample) -> npt.NDArray[np.int64]:
    """``(height, width)`` raster index of the destination that each token takes most from."""
    rows: npt.NDArray[np.int64] = sample.plan.destinations[0].cpu().numpy()
    found: npt.NDArray[np.int64] = rows[clusters(sample.plan, sample.grid)]
    return found


def _crop(grid: Grid) -> tuple[int, int, int]:
    """Left, top and side of the enlarged part, scaled to the grid; the whole of a small one."""
    left, top, side = CROP
    if min(grid.height, grid.width) <= side:
        return 0, 0, min(grid.height, grid.width)
    return left * grid.width // SIDE, top * grid.height // SIDE, side


def _cells(colours: Bytes) -> Image.Image:
    """Tokens as squares with a thin gap between them."""
    panel = Image.fromarray(colours).resize((WIDE, WIDE), Image.Resampling.NEAREST)
    pen, step = ImageDraw.Draw(panel), WIDE / len(colours)
    for place in range(1, len(colours)):
        pen.line([(place * step, 0), (place * step, WIDE)], fill=GONE)
        pen.line([(0, place * step), (WIDE, place * step)], fill=GONE)
    return panel


def _centre(row: int, column: int, step: float) -> tuple[float, float]:
    return (column + 0.5) * step, (row + 0.5) * step


def _dot(pen: ImageDraw.ImageDraw, at: tuple[float, float], radius: float) -> None:
    box = (at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)
    pen.ellipse(box, fill=LINE, outline=INK, width=1)


def _framed(panel: Image.Image, grid: Grid) -> Image.Image:
    """Mark the part that is enlarged next to it."""
    left, top, side = _crop(grid)
    step = panel.width / grid.width
    box = (left * step, top * step, (left + side) * step, (top + side) * step)
    ImageDraw.Draw(panel).rectangle(box, outline=FRAME, width=3)
    return panel
