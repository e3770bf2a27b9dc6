"""What happens between two denoising steps: say how far it is, and stop if nobody waits any more."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

Tell = Callable[[int, int, str], None]
"""``(steps done, steps in all, what is being generated)``."""


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """Nobody waits for the image any more."""


def quietly(done: int, total: int, what: str) -> None:
    """Tell nobody."""


@dataclass
class Progress:
    """Counts the steps of one or several images, and lets a visitor stop between any two of them."""

    total: int
    tell: Tell = quietly
    stop: Event = field(default_factory=Event)
    done: int = 0
    what: str = ""

    def begin(self, what: str) -> None:
        """Say what comes next."""
        self.what = what
        self.tell(self.done, self.total, what)
        self._look()

    def step(self) -> None:
        """One step is done."""
        self.done += 1
        self.tell(self.done, self.total, self.what)
        self._look()

    def _look(self) -> None:
        if self.stop.is_set():
            raise Stopped

    def arguments(self, pipe: Any) -> dict[str, Any]:
        """What to call a pipeline with so that it reports its steps; older pipelines know another callback."""
        known = inspect.signature(pipe.__call__).parameters
        if "callback_on_step_end" in known:
            return {"callback_on_step_end": self._at_step_end}
        return {"callback": self._at_step, "callback_steps": 1} if "callback" in known else {}

    def _at_step_end(self, _pipe: Any, _step: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        self.step()
        return tensors

    def _at_step(self, _step: int, _timestep: Any, _latents: Any) -> None:
        self.step()


class Visitors:
    """Who waits for an image at this moment, and how to stop generating it."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[Event]] = {}
        self._lock = Lock()

    @contextmanager
    def waiting(self, visitor: str) -> Iterator[Event]:
        """While a visitor waits; the event is set when they leave or press Stop."""
        stop = Event()
        with self._lock:
            self._waiting.setdefault(visitor, set()).add(stop)
        try:
            yield stop
        finally:
            with self._lock:
                self._waiting[visitor].discard(stop)
                if not self._waiting[visitor]:
                    del self._waiting[visitor]

    def dismiss(self, visitor: str) -> None:
        """Stop whatever is generated for a visitor."""
        with self._lock:
            for stop in self._waiting.get(visitor, ()):
                stop.set()
