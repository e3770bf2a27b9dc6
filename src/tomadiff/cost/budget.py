"""What an image may cost, and how merging is set so that it costs no more: ``apply(pipe, flops=0.6)``.

Everything here is arithmetic on shares: an unmerged call of the model costs 1, and
:mod:`tomadiff.cost.budget_search` says what merged ones cost. No image is generated; ``tomadiff tune`` generates some.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Self

from tomadiff.errors import SettingError
from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Due, Schedule
from tomadiff.utils.settings import Rule, Settings

Shares = Mapping[Due, float]
"""What one call costs by what is due at it, as a share of an unmerged call."""

Flops = Annotated[
    float,
    Rule(
        "it is the share of the unmerged FLOPs that an image may cost, above 0 and below 1, such as 0.6",
        lambda share: 0 < share < 1,
    ),
]
Speedup = Annotated[
    float,
    Rule("it says how many times as fast as the unmerged model, above 1, such as 1.4", lambda times: times > 1),
]


@dataclass(frozen=True)
class Policy:
    """Which of the settings that meet a budget is taken: the smallest ratio, on the finest level above all.

    The first steps stay unmerged unless the budget cannot be met so. To begin still later and
    to remove more then was no better on emoji-flux and worse on emoji-sdxl, at equal cost.

    Attributes:
        unmerged: share of the run that its first steps are.
        most: largest ratio of all.
        notches: ratios that are looked at are multiples of one part in so many,
        round_notches: and of one in so many where that makes no difference.
        unknown: steps that a run is taken to have where nobody says; only how often plans are made follows from it.
    """

    unmerged: float = 0.05
    most: float = 0.9375
    notches: int = 64
    round_notches: int = 16
    unknown: int = 20

    @property
    def ratios(self) -> tuple[float, ...]:
        """All that may be chosen, in rising order."""
        return tuple(notch / self.notches for notch in range(1, round(self.most * self.notches) + 1))


POLICY = Policy()
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RatioChoice:
    """How much may merge: between two ratios there is one more, where the finest level keeps the smaller of them.

    Detail lives on the finest grid: on emoji-sdxl, coarser ones lose far less by merging.

    Attributes:
        ratio: share of tokens to remove.
        finest: that of level 0.
    """

    ratio: float
    finest: float

    def on(self, schedule: Schedule) -> Schedule:
        """``schedule`` with the ratio of level 0, if that is another; the method has the other."""
        return schedule if self.finest == self.ratio else replace(schedule, ratio_at_level={0: self.finest})

    def rounder(self, notches: int) -> list[RatioChoice]:
        """Those nearby whose ratios are multiples of one part in so many."""
        ratio, finest = math.ceil(self.ratio * notches) / notches, self.finest * notches
        if self.finest == self.ratio:
            return [RatioChoice(ratio, ratio)]
        return [RatioChoice(ratio, way(finest) / notches) for way in (math.ceil, math.floor)]

    def __str__(self) -> str:
        at_finest = "" if self.finest == self.ratio else f" ({self.finest:g} at level 0)"
        return f"ratio {self.ratio:g}{at_finest}"


@dataclass(frozen=True)
class Budget(Settings):
    """What a whole image may cost, planning included; one of both.

    Attributes:
        flops: share of the unmerged FLOPs, below 1.
        speedup: how many times as fast as the unmerged model, above 1, as predicted for this kind of machine.
    """

    flops: Flops | None = None
    speedup: Speedup | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.flops is None) == (self.speedup is None):
            raise SettingError("Give one budget: flops=0.6, or speedup=1.4.")

    @classmethod
    def of(cls, flops: float | None, speedup: float | None) -> Budget | None:
        """The one that was given, if one was."""
        return None if flops is None and speedup is None else cls(flops, speedup)

    def instead_of(self, ratio: object) -> Self:
        """Itself; raises if a ratio was given too."""
        if ratio is not None:
            raise SettingError(
                f"Both {self} and the ratio {ratio} were given; the budget chooses the ratio, so give one."
            )
        return self

    def require_free(self, method: Method, schedule: Schedule) -> None:
        """Raise if settings leave no choice, or save in ways that are not counted."""
        if schedule.start:
            raise SettingError(
                f"{self} chooses the ratio and the first merged step; leave out schedule.start={schedule.start!r}."
            )
        if len(ratios_of(method)) < 2:
            raise SettingError(f"{type(method).__name__} has a ratio of its own, so {self} has nothing to choose.")

    @property
    def share(self) -> float:
        """Of an unmerged image's FLOPs, or of its seconds."""
        if self.flops is not None:
            return self.flops
        assert self.speedup is not None
        return 1 / self.speedup

    def describe(self, share: float) -> str:
        """``share`` in the budget's own words."""
        return f"{share:.1%} of the FLOPs" if self.flops is not None else f"{1 / share:.2f} times as fast"

    def __str__(self) -> str:
        return f"flops={self.flops:g}" if self.flops is not None else f"speedup={self.speedup:g}"


@dataclass(frozen=True)
class Choice:
    """Settings that meet a budget.

    Attributes:
        budget: which.
        ratio_choice: how much merges.
        start: first merged step.
        share: what an image is expected to cost, as a share of an unmerged one.
        steps: of the run, if they are known.
        machine: what time is predicted for, and where its constants are from.
        computed: steps that are not forecast, if some are.
    """

    budget: Budget
    ratio_choice: RatioChoice
    start: int
    share: float
    steps: int | None = None
    machine: str = ""
    computed: tuple[int, ...] | None = None

    @property
    def ratio(self) -> float:
        """Share of tokens to remove; see :class:`RatioChoice` for level 0."""
        return self.ratio_choice.ratio

    def __str__(self) -> str:
        where = f" on {self.machine}" if self.machine else ""
        steps = "" if self.computed is None else f"{len(self.computed)} of {self.steps} steps computed, "
        return f"{self.budget}: {steps}{self._merged}; expected: {self.budget.describe(self.share)}{where}"

    @property
    def _merged(self) -> str:
        if self.ratio == 0:
            return "nothing merged"
        if self.steps is None:
            return (
                f"{self.ratio_choice} at every step (the number of steps is not known; patch.begin(steps=…) tells it)"
            )
        return f"{self.ratio_choice} from step {self.start} of {self.steps}"


def ratios_of(method: Method, policy: Policy = POLICY) -> tuple[float, ...]:
    """Those of the policy's ratios that ``method`` can take."""
    return tuple(ratio for ratio in policy.ratios if _takes(method, ratio))


def choices_of(ratios: Sequence[float], levels: int = 1) -> list[RatioChoice]:
    """What may be chosen from ``ratios`` in rising order, for a model whose attention sees so many grids."""
    ratio_choices = [RatioChoice(ratio, ratio) for ratio in ratios]
    between = [RatioChoice(more, less) for less, more in pairwise(ratios)] if levels > 1 else []
    return sorted([*ratio_choices, *between], key=lambda ratio_choice: (ratio_choice.finest, ratio_choice.ratio))


def _takes(method: Method, ratio: float) -> bool:
    try:
        return replace(method, ratio=ratio).ratio == ratio
    except SettingError:
        return False


def choose(
    budget: Budget,
    shares: Callable[[RatioChoice], Shares],
    schedule: Schedule,
    steps: int | None,
    first: int = 0,
    ratio_choices: Sequence[RatioChoice] | None = None,
    policy: Policy = POLICY,
    computed: tuple[int, ...] | None = None,
) -> Choice:
    """The settings that :data:`POLICY` prefers among those that meet ``budget``; raises if none does.

    Args:
        budget: what an image may cost.
        shares: what calls cost at a ratio_choice; falls from ratio_choice to ratio_choice. Asked for few of them.
        schedule: how long plans are kept; its ``start`` is what is chosen here.
        steps: of the run; ``None`` if nobody knows, which leaves no window to choose.
        first: step that the run begins with (image-to-image begins further on).
        ratio_choices: those that the method can take, in rising order; ``None``: all ratios of the policy.
        policy: how to choose.
        computed: steps of the run that are not forecast; merging takes what these leave of the budget.
    """
    if computed is not None and steps is not None and len(computed) <= budget.share * (steps - first) + _ROUNDING:
        return Choice(budget, RatioChoice(0.0, 0.0), first, len(computed) / (steps - first), steps, computed=computed)
    total = first + policy.unknown if steps is None else steps
    ratio_choices = choices_of(policy.ratios) if ratio_choices is None else ratio_choices

    def share(ratio_choice: RatioChoice, start: int) -> float:
        known = shares(ratio_choice)
        due = replace(schedule, start=start).dues(total, first, computed)
        return sum(known[one] for one in due) / (total - first)

    early = first if steps is None else first + round(policy.unmerged * (steps - first))
    start = early if share(ratio_choices[-1], early) <= budget.share else first
    place = bisect_left(ratio_choices, True, key=lambda ratio_choice: share(ratio_choice, start) <= budget.share)
    if place == len(ratio_choices):
        raise SettingError(_out_of_reach(budget, share(ratio_choices[-1], first), ratio_choices[-1].ratio, computed))
    ratio_choice, found = ratio_choices[place], share(ratio_choices[place], start)
    rounder = (one for one in ratio_choice.rounder(policy.round_notches) if one.ratio <= ratio_choices[-1].ratio)
    same = (one for one in rounder if share(one, start) == found)  # regions keep whole tokens: they come to the same
    return Choice(budget, next(same, ratio_choice), start, found, steps, computed=computed)


def _out_of_reach(budget: Budget, least: float, ratio: float, computed: tuple[int, ...] | None) -> str:
    if least >= 1:
        return f"{budget} is out of reach: merging saves nothing here. Take the patch off, or give ratio=… instead."
    when = "from the first step on" if computed is None else f"at the {len(computed)} steps that are computed"
    best = "least" if budget.flops is not None else "most"
    return (
        f"{budget} is out of reach: the {best} that merging can reach here is {budget.describe(least)}, with ratio "
        f"{ratio:g} {when}. Give a budget that asks for less."
    )
