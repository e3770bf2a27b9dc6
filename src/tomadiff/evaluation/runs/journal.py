"""What a long command has finished, row by row: after a kill, the same command computes none of it again.

A journal lies next to what the command writes in the end, one line of JSON per row, and goes when that is written. A
row is found again by everything that was asked for, so rows of other settings or of another machine are never taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tomadiff.evaluation.runs.environment import environment
from tomadiff.utils.reading import OBJECT, OBJECTS, Kind, inside, read_json, read_lines, require_record
from tomadiff.utils.writing import append_line, write_whole


class Journal:
    """Finished rows.

    Args:
        beside: the file that the command writes in the end; ``None`` keeps rows for this process alone.
        asked: what all of them have in common; machine and versions are added to it.
    """

    def __init__(self, beside: Path | None = None, asked: Mapping[str, Any] | None = None) -> None:
        self.path = None if beside is None or _is_no_file(beside) else _path(beside)
        self._asked = {**machine(), **(asked or {})}
        self._rows: dict[str, tuple[str, dict[str, Any]]] = {}
        if self.path is not None and self.path.is_file():
            for where, held in read_lines(self.path):
                line = require_record(held, {"asked": OBJECT, "row": OBJECT}, where)
                self._rows[_key(line["asked"])] = where, line["row"]

    def row(
        self, asked: Mapping[str, Any], kinds: Mapping[str, Kind], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The row that was finished before, whose values must be of their ``kinds``; else it is made, and kept."""
        whole = {**self._asked, **asked}
        key = _key(whole)
        if key not in self._rows:
            made = make()
            if self.path is not None:
                append_line(self.path, json.dumps({"asked": whole, "row": made}))
            self._rows[key] = "", json.loads(json.dumps(made))
        where, row = self._rows[key]
        return require_record(row, kinds, where)

    def close(self) -> None:
        """Everything is written where it belongs: the journal goes."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def kept(
    path: Path,
    settings: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    make: Callable[[Journal], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Rows that were measured before with the same settings, else measured now and written down whole."""
    asked = json.loads(json.dumps({**settings, **machine()}))
    if inside(path.parent, path.name).is_file():
        held = require_record(read_json(path), {"settings": OBJECT, "rows": OBJECTS}, path)
        if held["settings"] == asked:
            return stored_rows(path, kinds)
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path, settings)
    rows = make(journal)
    write_whole(path, json.dumps({"settings": asked, "rows": rows}, indent=1))
    journal.close()
    return rows


def stored_rows(path: Path, kinds: Mapping[str, Kind]) -> list[dict[str, Any]]:
    """What :func:`kept` wrote, wherever and with whatever settings that was."""
    held = require_record(read_json(path), {"settings": OBJECT, "rows": OBJECTS}, path)
    return [require_record(row, kinds, f"{path}, row {place}") for place, row in enumerate(held["rows"], 1)]


def machine() -> dict[str, Any]:
    """Machine and versions, whatever the day."""
    return {name: value for name, value in environment().items() if name != "date"}


def _is_no_file(path: Path) -> bool:
    """Such as ``/dev/stdout``."""
    return path.exists() and not path.is_file()


def _path(beside: Path) -> Path:
    return inside(beside.parent, f"{beside.name}.unfinished.jsonl")


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)
