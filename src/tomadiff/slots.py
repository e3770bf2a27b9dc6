"""Where sites share a plan, and who makes it.

Compiled code sees only a :class:`Slot`'s plan (tensors of fixed shapes), a few flags and a handle. Everything that
changes from step to step lives in the slot's :class:`Planner`, which runs outside of graphs: directly in eager mode, as
an opaque operator inside compiled code.
"""

from __future__ import annotations

import copy
import itertools
import weakref
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


class Slot:
    """Where sites share a plan.

    Attributes:
        plan: the plan in use, renewed in place, so that compiled code keeps its graphs.
        active: whether tokens merge at this step.
        tail: tokens behind the grid that stay as they are.
        batch: samples in the call.
        trains: whether gradients of the model's weights are wanted.
        turn: which pass of the step the call is.
        reuses: whether ops give again what they gave last.
        carries: whether what ops give is kept, and merged is how it changes; see :attr:`Method.carries`.
        cautious: whether answers of joint attention are estimates to be averaged; see :class:`tomadiff.sites.Caution`.
        weighs: whether keys of merged tokens count for as many tokens as they stand for.
        planner: makes plans; never touched by compiled code.
    """

    def __init__(self, name: str, planner: Planner) -> None:
        self.name = name
        self.plan: Plan | None = None
        self.active = False
        self.tail = self.batch = self.turn = 0
        self.trains = self.reuses = self.carries = self.cautious = self.weighs = False
        self.planner = planner
        self.bypassed: dict[str, int] = {}
        self._renewed_for: Tick | None = None
        self._taken: Plan | None = None  # the planner's plan that ours has the state of
        self.warn: Callable[[str], None] = _say_nothing
        self.handle = torch.tensor(next(_NUMBERS))
        self.receipt = self.handle.clone()  # what compiled code was given for tokens it handed over; it says nothing
        _SLOTS[int(self.handle)] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot:
        """A copied model gets slots of its own, with handles of their own."""
        twin = Slot(self.name, copy.deepcopy(self.planner, memo))
        memo[id(self)] = twin
        twin.active, twin.tail, twin.trains = self.active, self.tail, self.trains
        twin.warn = copy.deepcopy(self.warn, memo)  # the voice of the copy's own patch
        return twin

    def prepare(self, batch: int, dtype: torch.dtype, device: torch.device, arranged: bool = False) -> None:
        """Have a plan of the right shapes at hand before compiled code asks for one.

        With ``arranged``, tokens come in whatever order the plan likes best.
        """
        grid, ratio = self.planner.grid, self.planner.ratio()
        assert grid is not None
        key, self.batch = (grid, batch, dtype, device, ratio, arranged, self.planner.method), batch
        if self.__dict__.get("_prepared") != key:
            blank = torch.zeros(batch, grid.tokens, 1, dtype=dtype, device=device)
            plan = self.planner.method.plan(blank, grid, ratio=ratio, depth=self.planner.depth)
            self.planner.order = plan.order if arranged else None
            self.plan = plan.arranged() if arranged else plan
            self.plan.renew([tensor.clone() for tensor in self.plan.state])  # no views: compiled code guards on them
            self._prepared, self._taken = key, None

    @property
    def order(self) -> Layout | None:
        """The order that tokens come in; ``None`` is raster order."""
        return self.planner.order

    def renew(self, tokens: Tensor) -> None:
        """Bring the plan up to date from ``tokens`` ``(B, N + tail, C)``, if anything is due."""
        if torch.compiler.is_compiling():
            assert self.plan is not None
            self.plan.renew(renewed_state(tokens, self.handle, self.plan.state))
            return
        self._renewed_for = self.planner.moment.tick
        current = self.planner.current(tokens)
        if current is self._taken:  # nothing was due
            return
        self._taken = current
        if self.plan is None or not self.plan.fits(current):
            self.plan = copy.copy(current if self.order is None else current.arranged())
        else:
            self.plan.renew(current.state)

    def note(self, tokens: Tensor) -> None:
        """Take ``tokens`` ``(B, N + tail, C)`` of a step that does not merge for those that answers belong to."""
        if torch.compiler.is_compiling():
            self.receipt = noted(tokens, self.handle)  # or the compiler would leave out the call
            return
        self._renewed_for = self.planner.moment.tick
        if self.expects(tokens):
            self.planner.note(tokens)

    def is_stale(self) -> bool:
        """Whether nobody has looked yet, in this call of the model, if the plan is due."""
        return self.plan is None or self._renewed_for is not self.planner.moment.tick

    def note_bypass(self, where: str, reason: str) -> None:
        """Count a call that ran unmerged, and say so the first time."""
        key = f"{where}: {reason}"
        self.bypassed[key] = self.bypassed.get(key, 0) + 1
        self.warn(reason)

    def expects(self, tokens: Tensor) -> bool:
        """Whether these are all tokens ``(B, N + tail, C)`` of the call: a plan made from some would not fit others."""
        grid = self.planner.grid
        return grid is not None and tuple(tokens.shape[:-1]) == (self.batch, grid.tokens + self.tail)

    def could_give(self, last: Tensor, merged: Tensor) -> bool:
        """Whether unmerging ``merged`` gives what ``last`` looks like; a chunk or another batch does not."""
        assert self.plan is not None
        like = merged.shape[0], self.plan.tokens + self.tail, merged.shape[2]
        return tuple(last.shape) == like and last.dtype == merged.dtype

    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N + tail, C)`` → ``(B, K + tail, C)``."""
        assert self.plan is not None
        if not self.tail:
            return self.plan.merge(tokens)
        image = self.plan.tokens
        return torch.cat([self.plan.merge(tokens[:, :image]), tokens[:, image:]], dim=1)

    def unmerge_add(self, merged: Tensor, residual: Tensor) -> Tensor:
        """``residual`` ``(B, N + tail, C)`` plus ``merged`` ``(B, K + tail, C)`` unmerged."""
        assert self.plan is not None
        return residual + self.unmerge(merged) if self.tail else self.plan.unmerge_add(merged, residual)

    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K + tail, C)`` → ``(B, N + tail, C)``."""
        assert self.plan is not None
        if not self.tail:
            return self.plan.unmerge(merged)
        image = self.plan.kept
        return torch.cat([self.plan.unmerge(merged[:, :image]), merged[:, image:]], dim=1)


_NUMBERS = itertools.count()
_SLOTS: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()


def _say_nothing(_: str) -> None:
    """Until a patch lends its voice."""


@torch.library.custom_op("tomadiff::renewed_state", mutates_args=())
def renewed_state(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - for its fake
    """The state of a slot's current plan, for compiled code: one opaque node, so that no step number enters a graph.

    ``state`` tells the shapes; ``handle`` is a tensor, because a number would be compiled in.
    """
    return [tensor.clone() for tensor in _SLOTS[int(handle)].planner.current(tokens, static=True).state]


@renewed_state.register_fake
def _(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - as the real one
    return [torch.empty_like(tensor) for tensor in state]


@torch.library.custom_op("tomadiff::noted", mutates_args=())
def noted(tokens: Tensor, handle: Tensor) -> Tensor:
    """:meth:`Slot.note` for compiled code; what it gives says nothing."""
    _SLOTS[int(handle)].note(tokens.clone())  # its memory may be used again
    return handle.clone()


@noted.register_fake
def _(tokens: Tensor, handle: Tensor) -> Tensor:  # noqa: ARG001 - as the real one
    return torch.empty_like(handle)
