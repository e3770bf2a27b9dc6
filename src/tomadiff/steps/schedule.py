"""When plans are made, and how much merges when: a :class:`Schedule` says what is due at a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from tomadiff.errors import SettingError
from tomadiff.utils.settings import Count, Index, Ratio, Rule, Settings

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
    """What a group of calls has to do at a step."""

    SKIP = "skip"
    """Before the first merged step: run unmerged."""
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
        ratio_at_level: ratio of single levels instead of the method's own, ``{0: 0.75}``.
    """

    destinations_every: Count | None = None
    weights_every: Count | None = None
    start: When = 0
    ratio_at_level: Mapping[Index, Ratio] | tuple[tuple[Index, Ratio], ...] = ()

    def __str__(self) -> str:
        """What it says, in one line."""
        destinations, weights = self.intervals
        told = [f"destinations every {destinations}", f"weights every {weights}", f"from {_moment(self.start)}"]
        told += [f"ratio {ratio:g} at level {level}" for level, ratio in dict(self.ratio_at_level).items()]
        return f"Schedule: {', '.join(told)}"

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

    def merges_at(self, step: int, total: int | None = None) -> bool:
        """Whether tokens merge at ``step``."""
        return step >= _step_of("start", self.start, total)

    @property
    def varies(self) -> bool:
        """Whether the method's own ratio is not the only one."""
        return bool(self.ratio_at_level)

    def ratio(self, base: float, level: int = 0) -> float:
        """Share of tokens to remove at this level, where ``base`` is the method's own."""
        return dict(self.ratio_at_level).get(level, base)

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

    def dues(self, total: int, first: int = 0, computed: tuple[int, ...] | None = None) -> list[Due]:
        """What is due at each step of a run of ``total`` steps that begins with step ``first``; or at some steps."""
        due: list[Due] = []
        selected = weighed = None
        for step in range(first, total) if computed is None else computed:
            due.append(self.due(step, selected, weighed, total))
            selected = step if due[-1] is Due.SELECT else selected
            weighed = step if due[-1] in (Due.SELECT, Due.REWEIGH) else weighed
        return due


def _moment(when: When) -> str:
    return f"step {when}" if isinstance(when, int) else f"{when:.0%} of the run"


def _step_of(name: str, moment: When, total: int | None) -> int:
    if isinstance(moment, int):
        return moment
    if total is None:
        raise SettingError(
            f"{name}={moment!r} is a share of the run, but the number of steps is not known here. Apply to the whole "
            "pipeline, call patch.begin(steps=…) before the loop, or give a whole number of steps."
        )
    return round(moment * total)
