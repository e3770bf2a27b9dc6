"""Which step it is: a :class:`Clock` reads it off the calls of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tomadiff.settings import Count, Index, checked


@dataclass(frozen=True)
class Tick:
    """One call of the model: which generation (picture), step, and pass within the step it is.

    ``total`` is the number of steps if it is known.
    """

    generation: int
    step: int
    turn: int
    total: int | None = None


_MOST_TURNS = 4  # more calls than this within a step are unusual enough to look at the timestep itself


class Clock:
    """Turns what a model sees into steps. In order of trust:

    1. steps that the caller states (:meth:`begin`, :meth:`state`);
    2. the ``step_index`` of the scheduler, with a new ``timesteps`` tensor as the sign of a new generation;
    3. the timestep itself: a new value is a new step, a larger one a new generation.

    Calls within one step are numbered by ``turn`` (separate guidance passes, Heun's second evaluation).
    """

    def __init__(self) -> None:
        self._generation = 0
        self._step = 0
        self._turn = -1
        self._total: int | None = None
        self._fresh = True
        self._stated: int | None = None
        self._last_timestep: float | None = None
        self._timesteps: object = None
        self._standing_still: object = None

    @checked
    def begin(self, steps: Count | None = None) -> None:
        """A new generation starts with the next call; ``steps`` is its length if known."""
        self._total = steps
        self._fresh = True
        self._stated = None

    @checked
    def state(self, step: Index) -> None:
        """The next calls belong to ``step``, until told otherwise."""
        self._stated = step

    def tick(self, timestep: Any = None, scheduler: Any = None) -> Tick:
        """Register one call of the model.

        Args:
            timestep: what the model was given: a number or a tensor (reading it from a GPU waits for the GPU, so it is
                left alone where a better source exists).
            scheduler: the pipeline's scheduler, if the model belongs to one.
        """
        if self._stated is not None:
            self._advance(self._stated)
        elif _is_out_of_use(scheduler):
            self._by_timestep(timestep, None)
        elif self._trusts(scheduler):
            self._by_scheduler(scheduler)
        else:
            self._by_timestep(timestep, scheduler)
        return Tick(self._generation, self._step, self._turn, self._total)

    def _trusts(self, scheduler: Any) -> bool:
        """A scheduler that counts; one that stands still belongs to another pipeline than the one at work."""
        if not hasattr(scheduler, "step_index") or not _has_timesteps(scheduler):
            return False
        if scheduler.timesteps is self._timesteps and self._turn >= _MOST_TURNS:
            self._standing_still = scheduler.timesteps
        return scheduler.timesteps is not self._standing_still

    def _by_scheduler(self, scheduler: Any) -> None:
        timesteps = scheduler.timesteps
        if timesteps is not self._timesteps:
            self._fresh, self._timesteps, self._total = True, timesteps, len(timesteps)
        index = scheduler.step_index
        self._advance(_first_index(scheduler) if index is None else int(index))

    def _by_timestep(self, timestep: Any, scheduler: Any) -> None:
        value = _largest(timestep)
        if _has_timesteps(scheduler) and scheduler.timesteps is not self._timesteps:
            self._fresh, self._timesteps, self._total = True, scheduler.timesteps, len(scheduler.timesteps)
        last, self._last_timestep = self._last_timestep, value
        if value is not None and last is not None and value > last:
            self._fresh = True
        new_step = value is None or value != last
        self._advance(0 if self._fresh else self._step + int(new_step))

    def _advance(self, step: int) -> None:
        if self._fresh or step < self._step:
            self._generation += 1
            self._turn = -1
        self._turn = self._turn + 1 if step == self._step and not self._fresh else 0
        self._step, self._fresh = step, False


def _has_timesteps(scheduler: Any) -> bool:
    return getattr(scheduler, "timesteps", None) is not None


def _is_out_of_use(scheduler: Any) -> bool:
    """Its run is over, or none was ever prepared: whatever drives the model now, it is not this one."""
    if not _has_timesteps(scheduler) or getattr(scheduler, "num_inference_steps", "absent") is None:
        return True
    index = getattr(scheduler, "step_index", None)
    return index is not None and int(index) >= len(scheduler.timesteps)


def _first_index(scheduler: Any) -> int:
    """Schedulers set their index at the first step only; image-to-image begins further on."""
    return int(getattr(scheduler, "begin_index", None) or 0)


def _largest(timestep: Any) -> float | None:
    """Per-token timesteps (video) hold zeros for given frames: the largest is the one that counts."""
    if timestep is None:
        return None
    return float(timestep.max()) if isinstance(timestep, torch.Tensor) else float(timestep)
