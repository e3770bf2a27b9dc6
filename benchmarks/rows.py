"""Results as rows of a CSV file that grows while they come in, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """All rows; none if there is no file yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row, written out at once; the first brings the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read_header(path)
    if known and known != list(row):
        raise SystemExit(f"{path} has other columns than this version writes; move it away to measure anew.")
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if not known:
            writer.writeheader()
        writer.writerow(row)


def read_header(path: Path) -> list[str]:
    """Names of the columns; none if there is no file yet."""
    if not path.exists() or not path.stat().st_size:
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows whose columns have these values, however they were written."""
    return [row for row in rows if all(row[name] == str(value) for name, value in wanted.items())]


def middle(rows: Iterable[Row], column: str) -> float:
    """Median of a column."""
    return median(float(row[column]) for row in rows)


def least(rows: Iterable[Row], column: str) -> float:
    """Smallest of a column: what else a machine was doing only ever adds to seconds."""
    return min(float(row[column]) for row in rows)
