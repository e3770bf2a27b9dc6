"""What this process writes and whom it calls, as Python's audit events tell it, and how much memory it holds."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

_CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CALLS = {"socket.connect", "socket.bind", "socket.getaddrinfo"}


@dataclass
class Seen:
    """Paths that were written to or changed, and hosts that were looked up, called or listened at."""

    paths: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """One audit event."""
        changes = event in _CHANGES or (event == "open" and args[2] & _WRITES)
        if changes and isinstance(args[0], str | bytes | os.PathLike):
            self.paths.add(os.path.abspath(os.fsdecode(args[0])))
        elif event in _CALLS:
            place = args[0] if event == "socket.getaddrinfo" else args[1]
            self.hosts.add(str(place[0] if isinstance(place, tuple) else place))


_LISTENING: list[Seen] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for seen in _LISTENING:
        seen.hear(event, args)


@contextmanager
def watched() -> Iterator[Seen]:
    """RootHook while the block runs."""
    if not getattr(sys, "_tomadiff_watched", False):  # hooks stay for good
        sys.addaudithook(_hook)
        sys._tomadiff_watched = True  # type: ignore[attr-defined]
    seen = Seen()
    _LISTENING.append(seen)
    try:
        yield seen
    finally:
        _LISTENING.remove(seen)


def close(blocks: Any) -> None:
    """Close a page, and wait for what is generated still: a process that ends while torch is at work is aborted."""
    blocks.close()
    while any(_is_at_work(frame) for thread, frame in sys._current_frames().items() if thread != threading.get_ident()):
        time.sleep(0.02)


def _is_at_work(frame: FrameType | None) -> bool:
    """Whether a thread runs anything of tomadiff."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("tomadiff."):
            return True
        frame = frame.f_back
    return False


def resident() -> int:
    """Bytes of memory that this process, and so a server in it, holds; what free() keeps for later goes back first."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
