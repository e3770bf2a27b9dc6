"""Tables on the terminal: as wide as it is, with no number cut short; what does not fit goes into a second table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tomadiff.evaluation.metrics.statistics import Interval
    from tomadiff.evaluation.metrics.table import Results, Row

_ARROWS = {"higher": "↑", "lower": "↓"}
_AROUND = 3  # characters around the cells of a column, and one more around all

Rows = Sequence[Sequence[str]]


def print_table(
    console: Console, headings: Sequence[str], rows: Rows, title: str = "", keys: int = 1, wide: bool = False
) -> None:
    """Print rows of text, in as many tables as fit side by side on the terminal one below the other.

    Args:
        console: where to.
        headings: of the columns.
        rows: their cells, as many as headings.
        title: a line above the first.
        keys: how many first columns say what a row is; every table has them.
        wide: print one table, however wide it is.
    """
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    own = console.width
    space = max(own, 1 + sum(width + _AROUND for width in widths)) if wide else own
    console.width = space  # Rich prints nothing wider
    if title:
        console.print(title, style="italic", markup=False, highlight=False, soft_wrap=False)
    for columns in _packed(widths, keys, space):
        cells = [[row[column] for column in columns] for row in (headings, *rows)]
        console.print(_table(cells, space), soft_wrap=False)
    console.width = own


def _packed(widths: Sequence[int], keys: int, space: int) -> list[list[int]]:
    """Columns of each table: the keys, and as many others as there is space for, one at least."""
    first = list(range(keys))
    taken = 1 + sum(widths[column] + _AROUND for column in first)
    tables, left = [list(first)], space - taken
    for column in range(keys, len(widths)):
        if left < widths[column] + _AROUND and len(tables[-1]) > keys:
            tables.append(list(first))
            left = space - taken
        tables[-1].append(column)
        left -= widths[column] + _AROUND
    return tables


def _table(cells: Rows, space: int) -> Table:
    """Numbers stay whole; the first column is folded if the others leave it no space."""
    table = Table()
    others = sum(max(map(cell_len, column)) + _AROUND for column in list(zip(*cells, strict=True))[1:])
    table.add_column(cells[0][0], overflow="fold", max_width=max(8, space - others - _AROUND - 1))
    for heading in cells[0][1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in cells[1:]:
        table.add_row(*row)
    return table


# ---------------------------------------------------------------------------------------------- measured runs
def show(results: Results, folder: Path, page: Path, wide: bool = False) -> None:
    """Print the table, what could not be measured and why, and where everything is."""
    from tomadiff.evaluation.runs.variants import UNGUARDED

    console = Console()
    print_results(console, results, wide)
    reasons: dict[str, list[str]] = {}
    for name, reason in results.missing.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        console.print(f"not measured: {', '.join(names)}. {reason}", style="yellow", markup=False, soft_wrap=True)
    console.print(UNGUARDED, style="dim", markup=False, soft_wrap=True)
    console.print(f"The run is in {folder}, its numbers in summary.json; look at {page}", markup=False, soft_wrap=True)


def print_results(console: Console, results: Results, wide: bool = False) -> None:
    """A row for each method and ratio: time, gain over the reference, and every metric ± half its interval."""
    from tomadiff.evaluation.metrics.distances import metric
    from tomadiff.evaluation.report.report import title_of

    half = f"± is half the {results.confidence:.0%} interval over {results.resampled}"
    title = f"against the image {title_of(results.reference)}; {half}"
    metrics = [metric(name) for name in results.columns]
    headings = ["method", "ratio", "images", "seconds", "faster"]
    headings += [f"{known.title} {_ARROWS[known.better]}" for known in metrics]
    rows = [
        [title_of(row.method), *_about(row, results.rows[0]), *_cells(row, results.columns)] for row in results.rows
    ]
    print_table(console, headings, rows, title, keys=2, wide=wide)


def _about(row: Row, first: Row) -> tuple[str, str, str, str]:
    faster = f"{first.seconds / row.seconds:.2f}×" if row.seconds else "–"
    return f"{row.ratio:g}", str(row.count), f"{row.seconds:.2f}", faster


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    from tomadiff.evaluation.metrics.distances import metric

    return [_cell(row.metrics.get(name), metric(name).digits) for name in names]


def _cell(interval: Interval | None, most: int) -> str:
    if interval is None:
        return "–"
    digits = interval.digits(most)
    return f"{interval.value:z.{digits}f} ± {(interval.high - interval.low) / 2:.{digits}f}"
