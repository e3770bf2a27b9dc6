"""One row of a long run may fail: that is reported, and the other rows go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tomadiff.errors import SettingError

logger = logging.getLogger("tomadiff")


class Failures:
    """What failed so far, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Write down what goes wrong inside, unless it concerns the whole run."""
        try:
            yield
        except Exception as problem:
            self.note(name, problem)

    def note(self, name: str, problem: Exception) -> str:
        """Write it down and give the line; what concerns the whole run is raised again."""
        if concerns_all(problem):
            raise problem
        self.lines.append(f"{name} failed: {' '.join(str(problem).split()) or type(problem).__name__}")
        logger.warning("%s", self.lines[-1])
        return self.lines[-1]

    def __bool__(self) -> bool:
        return bool(self.lines)


def concerns_all(problem: Exception) -> bool:
    """A full disk, no memory left, or settings that cannot work: going on would help nobody."""
    return isinstance(problem, OSError | MemoryError | SettingError) or "out of memory" in str(problem).lower()
