"""FLOPs of every method on the exact architectures, merging and planning included; ``python -m benchmarks.flops``.

Writes ``benchmarks/results/flops.csv`` and the table of ``docs/results/flops.md``. Shapes alone are needed, so
everything is counted on the meta device: no weights, no GPU, and the same numbers on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version
from itertools import product
from pathlib import Path

import torch

import tomadiff
from tomadiff.evaluation.runs.flops import (
    WINDOW,
    Count,
    count,
    count_kinds,
    count_limit,
)
from tomadiff.evaluation.runs.rows import write
from tomadiff.evaluation.timing import architectures
from tomadiff.methods.registry import CATALOGUE, named

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "flops.csv"
PAGE = ROOT / "docs" / "results" / "flops.md"
BEGIN, END = "<!-- flops: written by python -m benchmarks.flops -->", "<!-- flops: end -->"
MODELS = ("sdxl", "flux", "sd3")
RATIOS = (0.25, 0.5, 0.75)
LIMIT = "merging free"

Row = dict[str, str]


def rows_of(name: str, ratio: float) -> list[Row]:
    """Every method that can do ``ratio``, on one architecture at its own size."""
    torch.set_num_threads(1)
    model, inputs = architectures.build(name), architectures.inputs(name)
    whole = count(model, inputs)
    rows = [_row(name, LIMIT, ratio, count_limit(model, inputs, ratio), whole)]
    kinds = cache(lambda method: count_kinds(model, inputs, method))
    for entry in entries(ratio):
        method, schedule = named(entry, ratio)
        counted = Count(kinds(method), Counter(schedule.dues(WINDOW)))
        rows.append(_row(name, entry, ratio, counted.flops, whole, counted.planning))
    return rows


def entries(ratio: float) -> Iterator[str]:
    """The catalogue; a method that has a ratio of its own comes at that one only."""
    return (entry for entry in CATALOGUE if named(entry, ratio)[0].ratio == ratio)


def _row(name: str, method: str, ratio: float, flops: float, whole: float, planning: float = 0.0) -> Row:
    return {
        "architecture": name,
        "size": str(architectures.ARCHITECTURES[name].size),
        "method": method,
        "ratio": f"{ratio:g}",
        "unmerged_tflop": f"{whole / 1e12:.4f}",
        "tflop": f"{flops / 1e12:.4f}",
        "share": f"{flops / whole:.5f}",
        "planning_share": f"{planning / whole:.7f}",
        "torch": torch.__version__.partition("+")[0],
        "diffusers": version("diffusers"),
        "tomadiff": tomadiff.__version__,
    }


# ---------------------------------------------------------------------------------------------- for people
def markdown(rows: list[Row]) -> str:
    """The table of ``docs/results/flops.md``: share of the unmerged model's FLOPs that is left."""
    cells = {(row["architecture"], row["method"], row["ratio"]): row for row in rows}
    ratios = [f"{ratio:g}" for ratio in RATIOS]
    heads = [f"{architectures.ARCHITECTURES[name].title} {ratio.lstrip('0')}" for name in MODELS for ratio in ratios]
    lines = [_line(["method", *heads, "of which planning"]), _line(["---", *["---:"] * (len(heads) + 1)])]
    titles = {LIMIT: "*limit: merging costs nothing*"} | {key: f"{key}: {CATALOGUE[key].title}" for key in CATALOGUE}
    for method, title in titles.items():
        own = [cells.get((name, method, ratio)) for name in MODELS for ratio in ratios]
        lines.append(_line([title, *map(_share, own), "–" if method == LIMIT else _most_planning(own)]))
    return "\n".join(lines)


def _share(cell: Row | None) -> str:
    return "–" if cell is None else f"{float(cell['share']):.3f}".lstrip("0")


def _most_planning(cells: list[Row | None]) -> str:
    """The largest share of a row."""
    percent = 100 * max(float(cell["planning_share"]) for cell in cells if cell is not None)
    if percent == 0:
        return "0"
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2f} %"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def put_between_marks(page: Path, table: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what stands between the marks of a page, and leave the rest alone."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}", encoding="utf-8")


def put_in_section(page: Path, heading: str, table: str, begin: str, end: str) -> None:
    """The same; a page without these marks gets a section with them at its end."""
    before = page.read_text(encoding="utf-8")
    if begin not in before:
        page.write_text(f"{before.rstrip()}\n\n## {heading}\n\n{begin}\n{end}\n", encoding="utf-8")
    put_between_marks(page, table, begin, end)


def main(processes: int | None = None) -> None:
    """Count, in one process per core, and write."""
    names, ratios = zip(*product(MODELS, RATIOS), strict=True)
    with ProcessPoolExecutor(processes) as pool:
        rows = [row for part in pool.map(rows_of, names, ratios) for row in part]
    write(RESULTS, rows)
    put_between_marks(PAGE, markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
