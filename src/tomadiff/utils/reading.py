"""Files from elsewhere: presets, runs, prompts. Everything that reads one reads it here.

Whoever made a file may have made a mistake in it, or may mean harm. So a file has a largest size and depth, what it
holds has types, names in it are plain file names, and a path that it leads to stays inside its folder, links included.
Anything else is one error that names the file, and the line where there are lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tomadiff.errors import TomaError

MOST_BYTES = 64 * 2**20  # of a file that is read at once
MOST_LINE = 2**20  # bytes of a line of one that is read line by line
MOST_DEPTH = 32  # lists and objects in each other; seven are in use


class FileError(TomaError, ValueError):
    """A file from elsewhere cannot be used; the message names the file, and the line where there are lines."""


# ---------------------------------------------------------------------------------------------- text and JSON
def read_text(path: Path, error: type[TomaError] = FileError) -> str:
    """The UTF-8 text of a file; a byte-order mark in front, as spreadsheets write it, is left out."""
    try:
        with path.open("rb") as file:
            held = file.read(MOST_BYTES + 1)
    except FileNotFoundError as problem:
        raise error(f"{path}: there is no such file.") from problem
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}.") from problem
    except ValueError as problem:  # a name with a null byte
        raise error(f"{str(path)!r} is not the name of a file.") from problem
    if len(held) > MOST_BYTES:
        raise error(f"{path}: is larger than {MOST_BYTES // 2**20} MiB, which no such file is.")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = held[: problem.start].count(b"\n") + 1
        raise error(f"{path}, line {line}: is not UTF-8 text; save the file as UTF-8.") from problem


def parse_json(text: str | bytes, where: object, error: type[TomaError] = FileError) -> Any:
    """What JSON holds; ``where`` it is from begins the message if it holds none."""
    try:
        held = json.loads(text)
    except json.JSONDecodeError as problem:
        raise error(f"{where}, line {problem.lineno}: is not JSON: {problem.msg}.") from problem
    except RecursionError as problem:
        raise error(_too_deep(where)) from problem
    except ValueError as problem:  # a number of thousands of digits, or bytes that are no text
        raise error(f"{where}: is not JSON: {problem}.") from problem
    _require_shallow(held, where, error)
    return held


def read_json(path: Path, error: type[TomaError] = FileError) -> Any:
    """What a JSON file holds."""
    return parse_json(read_text(path, error), path, error)


def read_lines(path: Path, error: type[TomaError] = FileError) -> Iterator[tuple[str, Any]]:
    """What each whole line of a file of JSON lines holds, and where it is from: ``("run/results.jsonl, line 3", …)``.

    Lines that are not JSON are left out: a kill may have cut one short, the last one or one before a later start.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(file, path, error)
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}.") from problem


def _lines(file: BinaryIO, path: Path, error: type[TomaError]) -> Iterator[tuple[str, Any]]:
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(line) > MOST_LINE:
            raise error(f"{where}: is longer than {MOST_LINE // 2**20} MiB, which no such line is.")
        if not line.endswith(b"\n"):
            return
        try:
            held = json.loads(line)
        except ValueError:
            continue
        except RecursionError as problem:
            raise error(_too_deep(where)) from problem
        _require_shallow(held, where, error)
        yield where, held


def _require_shallow(held: object, where: object, error: type[TomaError]) -> None:
    """Not by recursion: what json just manages to read is too deep for whoever walks through it next."""
    level = [held]
    for _ in range(MOST_DEPTH):
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise error(_too_deep(where))


def _too_deep(where: object) -> str:
    return f"{where}: is nested more than {MOST_DEPTH} deep, which no such file is."


# ---------------------------------------------------------------------------------------------- types
@dataclass(frozen=True)
class Kind:
    """What a value must be: in words, and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_text(value: object) -> bool:
    """JSON can write halves of characters, which nothing can encode."""
    return isinstance(value, str) and _encodes(value)


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _is_name(value: object) -> bool:
    """One part of a path, and no way to another: no separator of any system, nothing hidden, nothing to escape."""
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable():
        return False
    return value[0] not in ". " and not set(value) & set('/\\:*?"<>|') and _encodes(value)


TEXT = Kind("text", _is_text)
NUMBER = Kind("a number", _is_number)
MEASURED = Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
RATIO = Kind("a share from 0 up to 1", lambda value: _is_number(value) and 0 <= value < 1)
WHOLE = Kind("a whole number of at least 0", _is_whole)
NAME = Kind("a plain name, which is part of a file's name", _is_name)
OBJECT = Kind("an object", lambda value: isinstance(value, dict) and all(map(_is_text, value)))
OBJECTS = Kind("a list of objects", lambda value: isinstance(value, list) and all(map(OBJECT.fits, value)))
NUMBERS = Kind("an object of numbers", lambda value: OBJECT.fits(value) and all(map(_is_number, value.values())))
TEXTS = Kind("an object of texts", lambda value: OBJECT.fits(value) and all(map(_is_text, value.values())))


def require_record(
    held: object, needed: Mapping[str, Kind], where: object, error: type[TomaError] = FileError, **more: Kind
) -> dict[str, Any]:
    """``held``, if it is an object with everything ``needed`` and nothing but that and ``more``, each of its kind."""
    if not isinstance(held, dict):
        raise error(f"{where}: must be an object, not {_short(held)}.")
    kinds = {**needed, **more}
    for name in needed:
        if name not in held:
            raise error(f"{where}: {name!r} is missing.")
    for name, value in held.items():
        if name not in kinds:
            raise error(f"{where}: {_short(name)} is not known; there may be {', '.join(kinds)}.")
        if not kinds[name].fits(value):
            raise error(f"{where}: {name!r} must be {kinds[name].words}, not {_short(value)}.")
    return held


def _short(value: object, most: int = 60) -> str:
    """On one line, in ASCII, and not longer than anyone reads."""
    if isinstance(value, dict | list):
        return f"an object of {len(value)}" if isinstance(value, dict) else f"a list of {len(value)}"
    told = ascii(value) if not isinstance(value, int) or abs(value) < 10**most else "a number of many digits"
    return told if len(told) <= most else f"{told[:most]}…"


# ---------------------------------------------------------------------------------------------- paths
def inside(folder: Path, *parts: str, error: type[TomaError] = FileError) -> Path:
    """The path of something in ``folder``, if it stays there when links are followed; it need not exist."""
    path = folder.joinpath(*parts)
    try:
        stays = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as problem:  # links in a circle
        raise error(f"{path}: cannot be followed: {problem}.") from problem
    if not stays:
        raise error(f"{path}: leads out of its folder, so it is not opened.")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise error(f"{path}: is neither a file nor a folder, so it is not opened.")
    return path
