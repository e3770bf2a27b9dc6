"""When plans are made, and how much merges when: a :class:`Schedule` says what is due at a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Literal, get_args

from tomadiff.errors import SettingError
from tomadiff.settings import Count, Index, Ratio, Rule, Settings, checked, whole

Op = Literal["attention", "cross_attention", "feed_forward"]
OPS: tuple[Op, ...] = get_args(Op)
"""Kinds of op that tokens can merge around."""

_PAPERS = 10, 5  # intervals

When = Annotated[
    int | float,
    Rule(
        "give a step as a whole number (4), or a share of the run from 0.0 to 1.0 (0.2)",
        lambda moment: moment >= 0 and (isinstance(moment, int) or moment <= 1),
    ),
]
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
class Schedule(Settings):
    """How long destinations and weights are kept, and where in a run tokens are merged.

    Age counts (``step − made at ≥ interval``), not the step's number, so a cache that skips steps does no harm.

    Attributes:
        destinations_every: renew destinations after this many steps; ``None`` leaves that to the method.
        weights_every: renew weights after this many steps; ``None`` leaves that to the method.
        start: first merged step.
        stop: first step that is unmerged again; ``None`` merges to the end.
        ratio_from: ratio from a step on, ``{0: 0.25, 10: 0.5}``; before the first entry the method's own holds.
        ratio_at_level: ratio of single levels, ``{0: 0.75}``; it outranks the one of the step.
        ratio_at_op: ratio of kinds of op, ``{"feed_forward": 0.25}``, which get own plans; it outranks the others.
        reuse_every: compute the ops (of Flux's single blocks, the whole block) only every so many steps, and add what
            they gave last in between: a cache on top of merging (or alone, with ratio 0). It holds all they give.
        reuse_from: first step of that.
    """

    destinations_every: Count | None = None
    weights_every: Count | None = None
    start: When = 0
    stop: When | None = None
    ratio_from: Mapping[When, Ratio] | tuple[tuple[When, Ratio], ...] = ()
    ratio_at_level: Mapping[Index, Ratio] | tuple[tuple[Index, Ratio], ...] = ()
    ratio_at_op: Mapping[Op, Ratio] | tuple[tuple[Op, Ratio], ...] = ()
    reuse_every: Count = 1
    reuse_from: When = 0

    @classmethod
    @checked
    def ramp(cls, first: Ratio, last: Ratio, pieces: Annotated[int, whole(2)] = 4, **settings: Any) -> Schedule:
        """A ratio that goes from ``first`` to ``last`` over the run, in ``pieces`` equal pieces (shapes stay few)."""
        ratios = {piece / pieces: first + (last - first) * piece / (pieces - 1) for piece in range(pieces)}
        return cls(ratio_from=ratios, **settings)

    def completed_by(self, own: Schedule) -> Schedule:
        """With what is left to the method, whose ``own`` schedule says it."""
        destinations, weights = (
            getattr(own, name) if getattr(self, name) is None else getattr(self, name)
            for name in ("destinations_every", "weights_every")
        )
        return replace(self, destinations_every=destinations, weights_every=weights)

    @property
    def intervals(self) -> tuple[int, int]:
        """Steps that destinations and weights are kept for; the paper's where nobody says."""
        return self.destinations_every or _PAPERS[0], self.weights_every or _PAPERS[1]

    @property
    def needs_total(self) -> bool:
        """Whether a fraction is used, so that the number of steps must be known."""
        moments = (self.start, self.stop, self.reuse_from, *(moment for moment, _ in self._ratio_steps))
        return any(isinstance(moment, float) for moment in moments)

    def merges_at(self, step: int, total: int | None = None) -> bool:
        """Whether ``step`` lies in the window."""
        return step >= _step_of("start", self.start, total) and not self._is_over(step, total)

    def _is_over(self, step: int, total: int | None) -> bool:
        return self.stop is not None and step >= _step_of("stop", self.stop, total)

    @property
    def ops(self) -> tuple[str, ...]:
        """Kinds of op that have a ratio, and so plans, of their own."""
        return tuple(op for op, _ in self._ratio_ops)

    @property
    def varies(self) -> bool:
        """Whether the method's own ratio is not the only one."""
        return bool(self.ratio_from or self.ratio_at_level or self.ratio_at_op)

    def reuses_at(self, step: int, total: int | None = None) -> bool:
        """Whether ops give again what they gave last."""
        since = step - _step_of("reuse_from", self.reuse_from, total)
        return since > 0 and since % self.reuse_every > 0

    def ratio(self, base: float, step: int, level: int = 0, total: int | None = None, op: str | None = None) -> float:
        """Share of tokens to remove at this step, level and op, where ``base`` is the method's own."""
        for known_op, ratio in self._ratio_ops:
            if known_op == op:
                return ratio
        for known, ratio in self._ratio_levels:
            if known == level:
                return ratio
        reached = [pair for pair in self._ratio_steps if step >= _step_of("ratio_from", pair[0], total)]
        return max(reached, key=lambda pair: _step_of("ratio_from", pair[0], total))[1] if reached else base

    def due(self, step: int, selected_at: int | None, weighed_at: int | None, total: int | None = None) -> Due:
        """What to do at ``step`` with a plan made at the given steps (``None``: never, in this generation)."""
        if not self.merges_at(step, total):
            return Due.SKIP
        destinations_every, weights_every = self.intervals
        if selected_at is None or step - selected_at >= destinations_every:
            return Due.SELECT
        if weighed_at is None or step - weighed_at >= weights_every:
            return Due.REWEIGH
        return Due.REUSE

    def dues(self, total: int, first: int = 0) -> list[Due]:
        """What is due at each step of a run of ``total`` steps that begins with step ``first``."""
        due: list[Due] = []
        selected = weighed = None
        for step in range(first, total):
            due.append(self.due(step, selected, weighed, total))
            selected = step if due[-1] is Due.SELECT else selected
            weighed = step if due[-1] in (Due.SELECT, Due.REWEIGH) else weighed
        return due

    @property
    def _ratio_steps(self) -> tuple[tuple[When, float], ...]:
        assert isinstance(self.ratio_from, tuple)
        return self.ratio_from

    @property
    def _ratio_ops(self) -> tuple[tuple[str, float], ...]:
        assert isinstance(self.ratio_at_op, tuple)
        return self.ratio_at_op

    @property
    def _ratio_levels(self) -> tuple[tuple[int, float], ...]:
        assert isinstance(self.ratio_at_level, tuple)
        return self.ratio_at_level


def _step_of(name: str, moment: When, total: int | None) -> int:
    if isinstance(moment, int):
        return moment
    if total is None:
        raise SettingError(
            f"{name}={moment!r} is a share of the run, but the number of steps is not known here. Apply to the whole "
            "pipeline, call patch.begin(steps=…) before the loop, or give a whole number of steps."
        )
    return round(moment * total)
