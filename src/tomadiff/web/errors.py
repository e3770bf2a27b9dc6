"""What to say when something goes wrong while somebody waits."""

from __future__ import annotations

import logging

from tomadiff.errors import TomaError
from tomadiff.web.progress import Stopped

logger = logging.getLogger("tomadiff")


def line_of(problem: Exception) -> str:
    """One line for the page; what nobody foresaw goes to the terminal in full."""
    if isinstance(problem, Stopped):
        return "Stopped."
    if isinstance(problem, TomaError):
        return " ".join(str(problem).split())
    if isinstance(problem, MemoryError) or "out of memory" in str(problem).lower():
        return "Out of memory; try a smaller size."
    logger.error("Generating failed", exc_info=problem)
    first = next(iter(str(problem).splitlines()), "")
    return f"That went wrong: {type(problem).__name__}: {first[:200]} The terminal says more; the page works on."
