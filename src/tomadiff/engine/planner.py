"""Who makes the plans of a slot: from its tokens, when the schedule says so, and keeps them.

Everything here changes from step to step and runs outside of graphs; see :mod:`tomadiff.engine.slots`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tomadiff.merging.grid import Grid, Layout
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Method
from tomadiff.steps.clock import Tick
from tomadiff.steps.schedule import Due, Schedule


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
        dice: where methods take random numbers from.
    """

    tick: Tick = field(default_factory=lambda: Tick(0, 0, 0))
    passes: int = 1
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


Watcher = Callable[["Planner", Tensor], None]
"""Told of a planner, whose ``last`` plan is the one to be used, and of the tokens ``(B, N, C)`` of the call."""

LAST_TURN = 7  # later calls of a step share a plan: a loop at one timestep must not pile up plans


class Planner:
    """Makes and keeps the plans of one slot; tells its ``watcher``, if it has one, whenever a call asks for a plan."""

    def __init__(
        self,
        method: Method,
        schedule: Schedule,
        moment: Moment,
        level: int,
        depth: float = 1.0,
    ) -> None:
        self.method, self.schedule, self.moment = method, schedule, moment
        self.level, self.depth = level, depth
        self.whole: Grid | None = None  # of the image
        self.grid: Grid | None = None  # of the tokens at hand: the same, unless several processes share them
        self.order: Layout | None = None  # that tokens come in; None: raster order
        self.kept: dict[int, Kept] = {}
        self.generation = -1
        self.plans_made = 0
        self.weights_made = 0
        self.last: Plan | None = None
        self.watcher: Watcher | None = None

    def ratio(self) -> float:
        """Share of tokens to remove."""
        return self.schedule.ratio(self.method.ratio, self.level)

    def current(self, tokens: Tensor) -> Plan:
        """The plan for this call; ``tokens`` ``(B, N + tail, C)`` are looked at only if something is due."""
        assert self.grid is not None
        turn, key = self._turn(), (self.grid, tokens.shape[0], tokens.dtype, tokens.device, self.ratio())
        image = tokens[:, : self.grid.tokens].detach()
        self.kept[turn] = self._renewed(self.kept.get(turn), self.kept.get(0), key, image)
        self.last = self.kept[turn].plan
        if self.watcher is not None:
            self.watcher(self, self._in_raster_order(image))
        return self.last

    def _turn(self) -> int:
        """The pass of the step; the plans of another picture are forgotten."""
        tick = self.moment.tick
        if tick.generation != self.generation:
            self.kept.clear()
            self.generation = tick.generation
        return min(tick.turn, LAST_TURN)

    def _in_raster_order(self, image: Tensor) -> Tensor:
        return image if self.order is None else self.order.restore(image)

    def _renewed(self, own: Kept | None, first: Kept | None, key: tuple[Any, ...], image: Tensor) -> Kept:
        """Later passes of a step take the destinations of its first, and weigh them by their own tokens."""
        tick = self.moment.tick
        if tick.turn > 0 and first is not None and first.key == key:
            if own is None or own.key != key or own.selected_at != first.selected_at:
                return self._reweighed(first, image)
        elif own is None or own.key != key:
            return self._selected(key, image)
        assert own is not None
        due = self.schedule.due(tick.step, own.selected_at, own.weighed_at, tick.total)
        if due is Due.SELECT and tick.turn == 0:
            return self._selected(key, image)
        return self._reweighed(own, image) if due in (Due.REWEIGH, Due.SELECT) else own

    def _selected(self, key: tuple[Any, ...], image: Tensor) -> Kept:
        assert self.grid is not None
        self.plans_made += 1
        tokens = self._in_raster_order(image)
        passes = self.moment.passes if len(tokens) % self.moment.passes == 0 else 1
        dice, ratio = self.moment.dice.generator, key[-1]
        plan = self.method.plan(tokens, self.grid, ratio=ratio, passes=passes, generator=dice, depth=self.depth)
        step = self.moment.tick.step
        return Kept(plan, key, step, step)

    def _reweighed(self, kept: Kept, image: Tensor) -> Kept:
        self.weights_made += 1
        plan = self.method.reweigh(kept.plan, self._in_raster_order(image))
        return Kept(plan, kept.key, kept.selected_at, self.moment.tick.step)
