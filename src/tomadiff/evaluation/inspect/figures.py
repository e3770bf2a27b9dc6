"""The figures of ``tomadiff inspect``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image

from tomadiff.evaluation.inspect.inspection import INTERVAL, Inspection, Level
from tomadiff.evaluation.inspect.observe import spread
from tomadiff.evaluation.inspect.overlap import Overlap
from tomadiff.evaluation.inspect.recolour import contact_sheet
from tomadiff.evaluation.report.overlay import MergedImage, merge_overlay
from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart, matrix_chart, sheet
from tomadiff.evaluation.report.report import Figure

MOST_PANELS = 3  # plans that have a panel of their own; all of them have a line in the charts
_GREY = COLOURS[-1]


def figures(found: Inspection) -> dict[str, Figure]:
    """The figures by the name of their file, each with what to see in it."""
    shown = spread(found.levels, MOST_PANELS)
    over = merge_overlay(found.unmerged, [MergedImage(found.merged, level.watched.plan, level.name) for level in shown])
    return {
        "clusters": Figure(
            "What merged",
            over,
            "Destinations and clusters of the last step, over the image that was generated with them.",
        ),
        "hidden_states": Figure(
            "Hidden states",
            contact_sheet(found.cells, found.unmerged),
            "Of the unmerged model. Where neighbours are in one cluster, little is lost by merging them, and regions "
            "need not be large. (The paper's figures 3 and 9.)",
        ),
        "coverage": Figure(
            "Coverage over steps",
            coverage_figure(found.levels),
            "Where the solid line falls below the dashed one, destinations are older than the image deserves.",
        ),
        "overlap": Figure(
            "Destinations from step to step",
            overlap_figure(found.levels),
            "Destinations are chosen anew at every step for this comparison, whatever the schedule keeps. High above "
            "chance, they can be kept for a while. (The paper's figure 4.)",
        ),
    }


def coverage_figure(levels: Sequence[Level]) -> Image.Image:
    """Coverage over steps: of the plan in use, and of one made anew at each step."""
    lines = []
    for level, colour in zip(levels, COLOURS, strict=False):
        looks = level.watched.looks
        chosen = frozenset(float(look.step) for look in looks if look.selected)
        used = tuple((float(look.step), look.coverage) for look in looks)
        fresh = tuple((float(look.step), look.fresh) for look in looks)
        lines += [Line(level.name, used, colour, dots=chosen), Line("if chosen anew", fresh, colour, dashed=True)]
    note = (
        "Mean similarity of a token to its nearest destination: at 1, nothing is lost. Dots: destinations are chosen."
    )
    chart = line_chart("Coverage of the plan in use", note, "step", lines, (1000, 480), percent=False)
    return sheet([[chart]])


def overlap_figure(levels: Sequence[Level]) -> Image.Image:
    """Destinations of steps compared: as squares, by distance, and as in the paper's figure 4."""
    squares = [_square(level) for level in spread(levels, MOST_PANELS)]
    apart = _chart(
        "By distance", "Destinations that are destinations k steps later too", "k", levels, lambda own: own.by_distance
    )
    since = _chart(
        "Since they were chosen",
        f"In common with the first of every {INTERVAL} steps",
        "step",
        levels,
        lambda own: own.since_first(INTERVAL),
    )
    return sheet([squares, [apart, since]])


def _square(level: Level) -> Image.Image:
    own, grid = level.overlap, level.watched.grid
    note = f"{grid.height} x {grid.width} tokens: destinations in common"
    return matrix_chart(f"{level.name[0].upper()}{level.name[1:]}", note, own.shares.numpy(), own.steps, own.chance)


def _chart(
    title: str, note: str, across: str, levels: Sequence[Level], values: Callable[[Overlap], list[float]]
) -> Image.Image:
    lines = []
    for level, colour in zip(levels, COLOURS, strict=False):
        own = values(level.overlap)
        places = range(len(own)) if across == "k" else level.overlap.steps
        lines.append(Line(level.name, tuple(zip(map(float, places), own, strict=True)), colour))
    ends = lines[0].points[0][0], lines[0].points[-1][0]
    for chance in sorted({round(level.overlap.chance, 3) for level in levels}):
        lines.append(Line("chance", tuple((end, chance) for end in ends), _GREY, dashed=True))
    return line_chart(title, note, "steps apart (k)" if across == "k" else across, lines, (577, 430))
