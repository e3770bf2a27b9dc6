"""Questions to the rows of a results file."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from tomadiff.evaluation.runs.rows import Row


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows whose columns have these values, however they were written."""
    return [row for row in rows if all(row[name] == str(value) for name, value in wanted.items())]


def middle(rows: Iterable[Row], column: str) -> float:
    """Median of a column."""
    return median(float(row[column]) for row in rows)


def least(rows: Iterable[Row], column: str) -> float:
    """Smallest of a column: what else a machine was doing only ever adds to seconds."""
    return min(float(row[column]) for row in rows)
