"""The paper's figures beside its grids of images: quality over time, and what ``tomadiff inspect`` sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tomadiff.evaluation.metrics.distances import metric
from tomadiff.evaluation.metrics.table import Row
from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart, sheet
from tomadiff.evaluation.report.report import Figure, LoadedRun, title_of
from tomadiff.evaluation.runs.images import image_text, read_image, save_image

INSPECTED = "paper-tile", 0.5  # a method and its ratio
Look = Callable[[], tuple[str, dict[str, Figure]]]
"""Inspects: what was inspected, and the figures by name."""

_NOTE = "tomadiff-note"


# ---------------------------------------------------------------------------------------------- what inspect sees
def seen(folder: Path, names: Sequence[str], look: Look | None) -> dict[str, Figure]:
    """Figures of an inspection by name. They are kept in a run's folder, and made by ``look`` if one is not there."""
    paths = {name: folder / f"{name}.png" for name in names}
    if look is not None and not all(path.is_file() for path in paths.values()):
        title, made = look()
        for name, path in paths.items():
            note = PngInfo()
            note.add_itxt(_NOTE, f"{made[name].title}\n{title}. {made[name].note}")
            save_image(made[name].image, path, optimize=True, pnginfo=note)
    return {name: _kept(path) for name, path in paths.items() if path.is_file()}


def _kept(path: Path) -> Figure:
    title, _, note = (image_text(path, _NOTE) or path.stem).partition("\n")
    return Figure(title, read_image(path), note)


# ---------------------------------------------------------------------------------------------- quality over time
def over_time(loaded: LoadedRun, names: Sequence[str]) -> Figure | None:
    """The paper's figure 5: metrics over the time that an image takes, a line for each method."""
    full = loaded.full
    if full is None or not full.seconds:
        return None
    charts = [_chart(loaded, name, full.seconds) for name in names if any(name in row.metrics for row in loaded.merged)]
    note = "A line is a method, a dot a ratio. Seconds are medians, as shares of the median in full."
    return Figure("quality over time", sheet([[one] for one in charts]), note) if charts else None


def _chart(loaded: LoadedRun, name: str, full: float) -> Image.Image:
    lines = list(_lines(loaded.merged, name, full))
    ends = [y for line in lines for _, y in line.points]
    lines.append(Line("in full", ((100, min(ends)), (100, max(ends))), COLOURS[-1], dashed=True))
    note = f"{loaded.name}; {metric(name).better} is better"
    return line_chart(metric(name).title, note, "time, % of that in full", lines, (1000, 480), percent=False)


def _lines(rows: Sequence[Row], name: str, full: float) -> Iterator[Line]:
    having = [row for row in rows if name in row.metrics]
    for place, method in enumerate(dict.fromkeys(row.method for row in having)):
        own = sorted((100 * row.seconds / full, row.metrics[name].value) for row in having if row.method == method)
        colour, dots = COLOURS[place % (len(COLOURS) - 1)], frozenset(x for x, _ in own)
        yield Line(title_of(method), tuple(own), colour, place >= len(COLOURS) - 1, dots)
