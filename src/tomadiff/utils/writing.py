"""Write files whole or not at all, also when killed; and find out before the work whether that is possible."""

from __future__ import annotations

import os
from pathlib import Path

from tomadiff.errors import SettingError

SIDE = ".side"  # how files end that are still being written


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file next to its place, and put it there when it is complete.

    A link in its place is replaced, not followed; what is no file, such as ``/dev/stdout``, is written to as it is.
    """
    path, held = Path(path), content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(held)
        return
    side = _side(path)
    try:
        with side.open("wb") as file:
            file.write(held)
            file.flush()
            os.fsync(file.fileno())
        side.replace(path)
    finally:  # a full disk leaves a torn file, which would only fill it further
        side.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append a line that survives a kill once we return; one that an earlier kill cut short stays alone."""
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            torn = file.read(1) != b"\n"
            file.seek(0, os.SEEK_END)
        file.write((b"\n" if size and torn else b"") + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def require_output(path: Path, option: str, make_folder: bool = False) -> None:
    """Raise unless a file can be written there, before work is done for it; remove what a kill left of it."""
    if make_folder:
        require_folder(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise SettingError(f"{option} {path}: is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise SettingError(f"{option} {path}: there is no folder {path.parent}; make it, or choose another place.")
    if path.exists() and not path.is_file():
        return
    sweep(path.parent, path.name)
    side = _side(path)
    try:
        side.touch()
    except OSError as problem:
        raise SettingError(
            f"{option} {path}: cannot be written: {problem.strerror or problem}; choose another place."
        ) from problem
    finally:
        side.unlink(missing_ok=True)


def require_folder(path: Path) -> None:
    """Raise unless a folder is there or can be made, before work is done for it; nothing is made yet."""
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise SettingError(f"Cannot write to {path}: {there} is not a folder; choose another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(f"Cannot write to {path}: {there} may not be changed; choose another folder.")


def sweep(folder: Path, name: str = "") -> None:
    """Remove files that a kill cut short: of the file of that name, or all; they were never counted."""
    for torn in folder.iterdir():
        if torn.name.startswith(f".{name[:_LONGEST]}") and torn.name.endswith(SIDE):
            torn.unlink(missing_ok=True)


_LONGEST = 180  # characters of a name that its side file keeps: systems allow 255 bytes


def _side(path: Path) -> Path:
    return path.with_name(f".{path.name[:_LONGEST]}.{os.getpid()}{SIDE}")
