"""When plans are made: a :class:`Schedule` says what is due at a step, a :class:`Clock` says which step it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from tomadiff.errors import SettingError, require_count, require_ratio

When = int | float
"""A moment of a run: a whole number counts steps, a fraction (0.0 to 1.0) is a share of the run."""


class Due(Enum):
    """What a slot has to do at a step."""

    SKIP = "skip"
    """Outside the window: run unmerged."""
    SELECT = "select"
    """Choose destinations, and weights with them."""
    REWEIGH = "reweigh"
    """Keep the destinations, renew the weights."""
    REUSE = "reuse"
    """Keep the whole plan."""


@dataclass(frozen=True)
class Schedule:
    """How long destinations and weights are kept, and where in a run tokens are merged.

    Age counts (``step − made at ≥ interval``), not the step's number, so a cache that skips steps does no harm.

    Attributes:
        destinations_every: renew destinations after this many steps.
        weights_every: renew weights after this many steps.
        start: first merged step.
        stop: first step that is unmerged again; ``None`` merges to the end.
        ratio_from: ratio from a step on, ``{0: 0.25, 10: 0.5}``; before the first entry the method's own holds.
        ratio_at_level: ratio of single levels, ``{0: 0.75}``; it outranks the others.
    """

    destinations_every: int = 10
    weights_every: int = 5
    start: When = 0
    stop: When | None = None
    ratio_from: Mapping[When, float] | tuple[tuple[When, float], ...] = ()
    ratio_at_level: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        require_count("destinations_every", self.destinations_every)
        require_count("weights_every", self.weights_every)
        _require_moment("start", self.start)
        if self.stop is not None:
            _require_moment("stop", self.stop)
        for name in ("ratio_from", "ratio_at_level"):
            object.__setattr__(self, name, _as_pairs(name, getattr(self, name)))
        for moment, _ in self._ratio_steps:
            _require_moment("ratio_from", moment)
        for level, _ in self._ratio_levels:
            require_count("ratio_at_level's level", level, least=0)

    @property
    def needs_total(self) -> bool:
        """Whether a fraction is used, so that the number of steps must be known."""
        moments = (self.start, self.stop, *(moment for moment, _ in self._ratio_steps))
        return any(isinstance(moment, float) for moment in moments)

    def merges_at(self, step: int, total: int | None = None) -> bool:
        """Whether ``step`` lies in the window."""
        after_start = step >= _step_of("start", self.start, total)
        return after_start and (self.stop is None or step < _step_of("stop", self.stop, total))

    def ratio(self, base: float, step: int, level: int = 0, total: int | None = None) -> float:
        """Share of tokens to remove at this step and level, where ``base`` is the method's own."""
        for known, ratio in self._ratio_levels:
            if known == level:
                return ratio
        reached = [pair for pair in self._ratio_steps if step >= _step_of("ratio_from", pair[0], total)]
        return max(reached, key=lambda pair: _step_of("ratio_from", pair[0], total))[1] if reached else base

    def due(self, step: int, selected_at: int | None, weighed_at: int | None, total: int | None = None) -> Due:
        """What to do at ``step`` with a plan made at the given steps (``None``: never, in this generation)."""
        if not self.merges_at(step, total):
            return Due.SKIP
        if selected_at is None or step - selected_at >= self.destinations_every:
            return Due.SELECT
        if weighed_at is None or step - weighed_at >= self.weights_every:
            return Due.REWEIGH
        return Due.REUSE

    @property
    def _ratio_steps(self) -> tuple[tuple[When, float], ...]:
        assert isinstance(self.ratio_from, tuple)
        return self.ratio_from

    @property
    def _ratio_levels(self) -> tuple[tuple[int, float], ...]:
        assert isinstance(self.ratio_at_level, tuple)
        return self.ratio_at_level


def _as_pairs(name: str, ratios: Mapping[Any, float] | tuple[tuple[Any, float], ...]) -> tuple[tuple[Any, float], ...]:
    """Mappings are kept as tuples, so that a schedule stays hashable and cannot be changed from outside."""
    pairs = tuple(ratios.items()) if isinstance(ratios, Mapping) else tuple(ratios)
    for key, ratio in pairs:
        require_ratio(f"{name}[{key!r}]", ratio)
    return pairs


def _require_moment(name: str, moment: object) -> None:
    if isinstance(moment, float) and 0 <= moment <= 1:
        return
    if isinstance(moment, int) and not isinstance(moment, bool) and moment >= 0:
        return
    raise SettingError(
        f"{name}={moment!r} is not a moment of a run; give a step as a whole number (4), or a share of the run from "
        "0.0 to 1.0 (0.2)."
    )


def _step_of(name: str, moment: When, total: int | None) -> int:
    if isinstance(moment, int):
        return moment
    if total is None:
        raise SettingError(
            f"{name}={moment!r} is a share of the run, but the number of steps is not known here. Apply to the whole "
            "pipeline, call patch.begin(steps=…) before the loop, or give a whole number of steps."
        )
    return round(moment * total)


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

    def begin(self, steps: int | None = None) -> None:
        """A new generation starts with the next call; ``steps`` is its length if known."""
        if steps is not None:
            require_count("steps", steps)
        self._total = steps
        self._fresh = True
        self._stated = None

    def state(self, step: int) -> None:
        """The next calls belong to ``step``, until told otherwise."""
        require_count("step", step, least=0)
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
