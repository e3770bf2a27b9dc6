"""Results as a CSV file that grows row by row, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from tomadiff.utils.reading import FileError
from tomadiff.utils.writing import append_line, write_whole

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """All rows; none if there is no file yet. One that a kill cut short does not count."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    """Add rows, on disk when this returns; the first brings the header."""
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    known = _header(path)
    columns = known or list(rows[0])
    if any(list(row) != columns for row in rows):
        raise FileError(f"{path} has other columns than this version writes; move it away to measure anew.")
    lines = [list(row.values()) for row in rows]
    append_line(path, _text(lines if known else [columns, *lines]).rstrip("\n"))


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A file of all rows, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _text([list(rows[0]), *(list(row.values()) for row in rows)]))


def _text(lines: Sequence[Sequence[Any]]) -> str:
    held = StringIO(newline="")
    csv.writer(held, lineterminator="\n").writerows(lines)
    return held.getvalue()


def _header(path: Path) -> list[str]:
    if not path.exists() or not path.stat().st_size:
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))
