"""Which step it is: a :class:`Clock` reads it off the calls of a model.

A model is told its timestep, often as a tensor on a GPU that takes a wait to read. Here the step comes from the
scheduler that drives the call wherever there is one; see :mod:`tomadiff.engine.driver`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tomadiff.utils.settings import Count, Index, checked


class Timeline:
    """The scheduler's timesteps of one image."""

    def __init__(self, timesteps: Any) -> None:
        self.timesteps = timesteps

    @cached_property
    def times(self) -> tuple[float, ...]:
        """As numbers, in the order of the steps; read from the device once for each image, and only if asked for."""
        given = self.timesteps
        return tuple(float(time) for time in (given.tolist() if hasattr(given, "tolist") else given))


@dataclass(frozen=True)
class StepInfo:
    """One call of the model.

    Attributes:
        generation: number of the image.
        step: of the scheduler, from 0; image-to-image begins further on.
        pass_index: number of the call within the step (separate guidance passes).
        total: number of steps of the scheduler, if it is known.
        timeline: the scheduler's timesteps; ``None`` in a loop of one's own.
    """

    generation: int
    step: int
    pass_index: int
    total: int | None = None
    timeline: Timeline | None = field(default=None, compare=False, repr=False)

    @property
    def times(self) -> tuple[float, ...] | None:
        """The scheduler's timesteps as numbers, one for each step, if a scheduler is known."""
        return None if self.timeline is None else self.timeline.times


class Clock:
    """Turns what a model sees into steps. In order of trust:

    1. steps that the caller states (:meth:`begin`, :meth:`state`), for calls by that caller;
    2. the scheduler: which of its ``timesteps`` the model was given, or its ``step_index``. A new ``timesteps`` tensor
       is the sign of a new image;
    3. the timestep itself: a new value is a new step, a larger one a new image.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._step = 0
        self._pass_index = -1
        self._total: int | None = None
        self._fresh = True
        self._stated: int | None = None
        self._stated_by = self._caller = 0
        self._timeline: Timeline | None = None
        self._moves = self._stands_still = False  # what the scheduler was seen to do
        self._last: Any = None  # timestep

    @checked
    def begin(self, steps: Count | None = None, caller: int = 0) -> None:
        """A new image starts with the next call; ``steps`` is its length if known.

        ``caller`` is the number of the pipeline at work, 0 in a loop of one's own. What is stated holds for calls by
        the same caller, and ends with the first call by another.
        """
        self._total, self._stated, self._stated_by = steps, None, caller
        self._fresh = True

    @checked
    def state(self, step: Index, caller: int = 0) -> None:
        """The next calls by ``caller`` belong to ``step``, until told otherwise."""
        if caller != self._stated_by:
            self._total = None
        self._stated, self._stated_by = step, caller

    def step_info(self, timestep: Any = None, scheduler: Any = None, caller: int = 0) -> StepInfo:
        """Register one call of the model.

        Args:
            timestep: what the model was given: a number or a tensor. Reading it from a GPU waits for the GPU, so it is
                left alone where a better source exists.
            scheduler: of the pipeline that made the call, if there is one.
            caller: number of that pipeline, 0 in a loop of one's own.
        """
        if caller != self._caller or caller != self._stated_by:
            self._hand_over(caller)
        if self._stated is not None:
            self._timeline = None
            self._advance(self._stated)
        elif is_in_use(scheduler):
            self._by_scheduler(timestep, scheduler)
        else:
            self._timeline = None
            self._by_timestep(timestep)
        return StepInfo(self._generation, self._step, self._pass_index, self._total, self._timeline)

    def _hand_over(self, caller: int) -> None:
        """Another caller begins another image, and what the last one stated is over."""
        if caller != self._stated_by:
            self._stated, self._total = None, None
        if caller != self._caller:
            self._fresh = True
        self._caller = self._stated_by = caller

    def _by_scheduler(self, timestep: Any, scheduler: Any) -> None:
        timesteps = scheduler.timesteps
        if self._timeline is None or timesteps is not self._timeline.timesteps:
            self._timeline, self._fresh = Timeline(timesteps), True
        if self._fresh:
            self._moves = self._stands_still = False
        index = _place_in(timesteps, timestep)
        if index is None:
            counts = hasattr(scheduler, "step_index")
            index = self._counted(timestep, scheduler) if counts else self._looked_up(timestep)
        if index is None:
            self._by_timestep(timestep)
        else:
            self._advance(index)
            self._last = timestep
        self._total = None if self._stands_still else len(timesteps)

    def _counted(self, timestep: Any, scheduler: Any) -> int | None:
        """The scheduler's own count, unless it stands still while timesteps change (some pipelines step copies)."""
        if self._stands_still:
            return None
        counted = scheduler.step_index
        index = _first_index(scheduler) if counted is None else int(counted)
        if not self._fresh and not self._moves:
            self._moves = index != self._step
            self._stands_still = not self._moves and _largest(timestep) != _largest(self._last)
        return None if self._stands_still else index

    def _looked_up(self, timestep: Any) -> int | None:
        """Where the value stands among those of the scheduler, from the present step on if it is there."""
        assert self._timeline is not None
        value, times = _largest(timestep), self._timeline.times
        start = 0 if self._fresh or value not in times[self._step :] else self._step
        return times.index(value, start) if value is not None and value in times else None

    def _by_timestep(self, timestep: Any) -> None:
        value, last = _largest(timestep), _largest(self._last)
        self._last = value  # not the tensor, which may be written to
        if value is not None and last is not None and value > last:
            self._fresh = True
        new_step = value is None or value != last
        self._advance(0 if self._fresh else self._step + int(new_step))

    def _advance(self, step: int) -> None:
        if self._fresh or step < self._step:
            self._generation += 1
            self._pass_index = -1
        self._pass_index = self._pass_index + 1 if step == self._step and not self._fresh else 0
        self._step, self._fresh = step, False


def is_in_use(scheduler: Any) -> bool:
    """Whether a run was prepared and is not over; otherwise something else drives the model."""
    timesteps = getattr(scheduler, "timesteps", None)
    if timesteps is None or getattr(scheduler, "num_inference_steps", "absent") is None:
        return False
    index = getattr(scheduler, "step_index", None)
    return index is None or int(index) < len(timesteps)


def _first_index(scheduler: Any) -> int:
    """Schedulers set their index at the first step only; image-to-image begins further on."""
    return int(getattr(scheduler, "begin_index", None) or 0)


def _place_in(timesteps: Any, timestep: Any) -> int | None:
    """Which of ``timesteps`` the model was given, if it was given a view of one: nothing is read from the device."""
    if type(timestep) is not Tensor or type(timesteps) is not Tensor or timesteps.dim() != 1 or timesteps.is_meta:
        return None
    if timestep.dtype != timesteps.dtype or (any(timestep.stride()) and timestep.numel() > 1):
        return None
    if timestep.untyped_storage().data_ptr() != timesteps.untyped_storage().data_ptr():
        return None
    place = (timestep.storage_offset() - timesteps.storage_offset()) // max(1, timesteps.stride(0))
    return place if 0 <= place < len(timesteps) else None


def _largest(timestep: Any) -> float | None:
    """Per-token timesteps (video) hold zeros for given frames: the largest is the one that counts."""
    if timestep is None:
        return None
    return float(timestep.max()) if isinstance(timestep, torch.Tensor) else float(timestep)
