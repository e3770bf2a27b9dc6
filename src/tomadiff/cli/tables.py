"""Measured runs as tables on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tomadiff.evaluation.metrics.statistics import Interval
    from tomadiff.evaluation.metrics.table import Results, Row

_ARROWS = {"higher": "↑", "lower": "↓"}


def show(results: Results, folder: Path, page: Path) -> None:
    """Print the table, what could not be measured and why, and where everything is."""
    from tomadiff.evaluation.runs.variants import UNGUARDED

    console = Console()
    console.print(table_of(results))
    reasons: dict[str, list[str]] = {}
    for name, reason in results.missing.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        console.print(f"not measured: {', '.join(names)}. {reason}", style="yellow", markup=False, soft_wrap=True)
    console.print(UNGUARDED, style="dim", markup=False, soft_wrap=True)
    console.print(f"The run is in {folder}, its numbers in summary.json; look at {page}", markup=False, soft_wrap=True)


def table_of(results: Results) -> Table:
    """A row for each method and ratio: time, gain over the reference, and every metric ± half its interval."""
    from tomadiff.evaluation.metrics.table import metric

    title = f"against {results.reference}; ± is half the {results.confidence:.0%} interval over {results.resampled}"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("method", no_wrap=True)
    for heading in ("ratio", "images", "seconds", "faster"):
        table.add_column(heading, justify="right")
    for name in results.columns:
        known = metric(name)
        table.add_column(f"{known.title} {_ARROWS[known.better]}", justify="right")
    first = results.rows[0]
    for row in results.rows:
        table.add_row(*_about(row, first), *(_cell(name, row.metrics.get(name)) for name in results.columns))
    return table


def _about(row: Row, first: Row) -> tuple[str, str, str, str, str]:
    faster = f"{first.seconds / row.seconds:.2f}×" if row.seconds else "–"
    return row.method, f"{row.ratio:g}", str(row.count), f"{row.seconds:.2f}", faster


def _cell(name: str, interval: Interval | None) -> str:
    from tomadiff.evaluation.metrics.table import metric

    if interval is None:
        return "–"
    digits = metric(name).digits
    return f"{interval.value:.{digits}f} ± {(interval.high - interval.low) / 2:.{digits}f}"
