"""Who makes the plans of a slot: from what is new about its tokens, when the schedule says so, and keeps them.

Everything here changes from step to step and runs outside of graphs; see :mod:`tomadiff.slots`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tomadiff.clock import Tick
from tomadiff.grid import Grid, Layout
from tomadiff.methods.base import Method
from tomadiff.plan import Plan
from tomadiff.schedule import Due, Schedule


class Dice:
    """Random numbers of a patch's own: the same ones for every picture, and the sampler's are left alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def restart(self) -> None:
        """Begin again, for the next picture."""
        self.generator.manual_seed(self.seed)

    def __deepcopy__(self, _: dict[int, Any]) -> Dice:
        return Dice(self.seed)


@dataclass
class Moment:
    """What the root of a model was last called with; shared by all slots of one model.

    Attributes:
        tick: which picture, step and pass.
        passes: guidance passes stacked in the batch.
        tail: tokens behind the grid that stay as they are (reference images).
        dice: where methods take random numbers from.
    """

    tick: Tick = field(default_factory=lambda: Tick(0, 0, 0))
    passes: int = 1
    tail: int = 0
    dice: Dice = field(default_factory=lambda: Dice(0))

    def move(self, tick: Tick) -> bool:
        """Go on to another call; whether it is the first of a picture."""
        begins = tick.generation != self.tick.generation
        if begins:
            self.dice.restart()
        self.tick = tick
        return begins


@dataclass
class Kept:
    """A plan and when it was made, for one pass of the step."""

    plan: Plan
    key: tuple[Any, ...]
    selected_at: int
    weighed_at: int


class Sight:
    """The tokens of one call; moved and compared only if somebody looks.

    Attributes:
        known: ``(B, N, C)`` in raster order, the tokens that answers at hand belong to, if there are any.
    """

    def __init__(self, given: Tensor, order: Layout | None, known: Tensor | None) -> None:
        self._given, self._order, self.known = given, order, known

    @cached_property
    def tokens(self) -> Tensor:
        """``(B, N, C)`` in raster order."""
        return self._given if self._order is None else self._order.restore(self._given)

    @cached_property
    def news(self) -> Tensor:
        """``(B, N, C)`` what plans are made from: how tokens changed, or all that they are."""
        return self.tokens if self.known is None else self.tokens - self.known


def caught_up(plan: Plan, news: Tensor, known: Tensor | None) -> Tensor:
    """The tokens ``(B, N, C)`` that answers belong to once ``plan`` has spread those to ``news`` over the ``known``.

    Tokens and their answers change by the same matrices: what a destination learns is exact, what others are told is
    as good as their neighbours' news explain their own.
    """
    told = plan.merge(news)
    return plan.unmerge(told) if known is None else plan.unmerge_add(told, known)


Watcher = Callable[["Planner", Tensor], None]
"""Told of a planner, whose ``last`` plan is the one to be used, and of the tokens ``(B, N, C)`` of the call."""

LAST_TURN = 7  # later calls of a step share a plan: a loop at one timestep must not pile up plans


class Planner:
    """Makes and keeps the plans of one slot; tells its ``watcher``, if it has one, whenever a call asks for a plan.

    Where answers are carried on, it also knows the tokens they are answers to, and plans from what is new about the
    tokens of a call. What a plan cannot tell about a token stays new, so it is chosen sooner or later.
    """

    def __init__(
        self,
        method: Method,
        schedule: Schedule,
        moment: Moment,
        level: int,
        depth: float = 1.0,
        op: str | None = None,
        spared: float = 0.0,
    ) -> None:
        self.method, self.schedule, self.moment = method, schedule, moment
        self.level, self.depth, self.op, self.spared = level, depth, op, spared
        self.grid: Grid | None = None
        self.order: Layout | None = None  # that tokens come in; None: raster order
        self.kept: dict[int, Kept] = {}
        self.carries = False
        self.known: dict[int, Tensor] = {}  # by pass, the tokens (B, N, C) that answers at hand belong to
        self.generation = -1
        self.plans_made = 0
        self.weights_made = 0
        self.last: Plan | None = None
        self.watcher: Watcher | None = None
        self.suitable: float | None = None  # ratio that the tokens seen last can spare, where a method looks at that

    def ratio(self) -> float:
        """Share of tokens to remove now."""
        return self.settled_ratio() if self.suitable is None else self._scheduled(self.suitable)

    def settled_ratio(self) -> float:
        """The same by the settings alone, whatever the tokens are like."""
        return self._scheduled(max(0.0, self.method.ratio - self.spared))

    def _scheduled(self, own: float) -> float:
        tick = self.moment.tick
        return self.schedule.ratio(own, tick.step, self.level, tick.total, self.op)

    def current(self, tokens: Tensor, static: bool = False) -> Plan:
        """The plan for this call; ``tokens`` ``(B, N + tail, C)`` are looked at only if something is due.

        With ``static`` (compiled code) it has the shapes of :meth:`ratio` as it was before the tokens were seen; what
        they can spare holds from the next call on.
        """
        assert self.grid is not None
        turn, ratio = self._turn(), self.ratio()
        sight = self._sight(tokens, self.known.get(turn) if self.carries else None)
        self.kept[turn] = self._renewed(self.kept.get(turn), self.kept.get(0), self._key(tokens, ratio), sight)
        if self.ratio() != ratio and not static:
            self.kept[turn] = self._selected(self._key(tokens, self.ratio()), sight)
        self.last = self.kept[turn].plan
        if self.carries:
            self.known[turn] = caught_up(self.last, sight.news, sight.known)
        if self.watcher is not None:
            self.watcher(self, sight.tokens)
        return self.last

    def note(self, tokens: Tensor) -> None:
        """These ``tokens`` ``(B, N + tail, C)`` get answers of their own: this call does not merge."""
        self.known[self._turn()] = self._sight(tokens).tokens

    def _turn(self) -> int:
        """The pass of the step; the plans of another picture are forgotten."""
        tick = self.moment.tick
        if tick.generation != self.generation:
            self.kept.clear()
            self.known.clear()
            self.generation = tick.generation
        return min(tick.turn, LAST_TURN)

    def _sight(self, tokens: Tensor, known: Tensor | None = None) -> Sight:
        assert self.grid is not None
        image = tokens[:, : self.grid.tokens].detach()
        alike = known is not None and known.shape == image.shape and known.dtype == image.dtype
        return Sight(image, self.order, known if alike else None)

    def _key(self, tokens: Tensor, ratio: float) -> tuple[Any, ...]:
        return (self.grid, tokens.shape[0], tokens.dtype, tokens.device, ratio)

    def _renewed(self, own: Kept | None, first: Kept | None, key: tuple[Any, ...], sight: Sight) -> Kept:
        """Later passes of a step take the destinations of its first, and weigh them by their own tokens."""
        tick = self.moment.tick
        if tick.turn > 0 and first is not None and first.key == key:
            if own is None or own.key != key or own.selected_at != first.selected_at:
                return self._reweighed(first, sight)
        elif own is None or own.key != key:
            return self._selected(key, sight)
        assert own is not None
        due = self.schedule.due(tick.step, own.selected_at, own.weighed_at, tick.total)
        if due is Due.SELECT and tick.turn == 0:
            return self._selected(key, sight)
        return self._reweighed(own, sight) if due in (Due.REWEIGH, Due.SELECT) else own

    def _selected(self, key: tuple[Any, ...], sight: Sight) -> Kept:
        assert self.grid is not None
        self.plans_made += 1
        passes = self.moment.passes if len(sight.tokens) % self.moment.passes == 0 else 1
        dice, ratio = self.moment.dice.generator, key[-1]
        plan = self.method.plan(sight.news, self.grid, ratio=ratio, passes=passes, generator=dice, depth=self.depth)
        self.suitable = self.method.suitable_ratio(sight.tokens, self.grid, passes=passes)
        step = self.moment.tick.step
        return Kept(plan, key, step, step)

    def _reweighed(self, kept: Kept, sight: Sight) -> Kept:
        self.weights_made += 1
        plan = self.method.reweigh(kept.plan, sight.news, depth=self.depth)
        return Kept(plan, kept.key, kept.selected_at, self.moment.tick.step)
