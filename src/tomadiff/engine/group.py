"""Calls that share a plan: a :class:`PlanGroup` makes it when the schedule says so, keeps it, and merges with it.

Compiled code sees only the plan in use (tensors of fixed shapes), a few flags and a handle. Everything that changes
from step to step runs outside of graphs: directly in eager mode, as one opaque operator inside compiled code.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tomadiff.families.base import TokenLayout
from tomadiff.merging.grid import Grid, Layout
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Method
from tomadiff.steps.clock import StepInfo
from tomadiff.steps.schedule import Due, Schedule


class ImageRng:
    """Random numbers of a patch's own: the same ones for every image, and the sampler's are left alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def restart(self) -> None:
        """Begin again, for the next image."""
        self.generator.manual_seed(self.seed)

    def __deepcopy__(self, _: dict[int, Any]) -> ImageRng:
        return ImageRng(self.seed)


@dataclass
class StepContext:
    """What the root of a model was last called with; shared by all groups of one model.

    Attributes:
        info: which image, step and pass.
        passes: guidance passes stacked in the batch.
        rng: where methods take random numbers from.
    """

    info: StepInfo = field(default_factory=lambda: StepInfo(0, 0, 0))
    passes: int = 1
    rng: ImageRng = field(default_factory=lambda: ImageRng(0))

    def move(self, info: StepInfo) -> bool:
        """Go on to another call; whether it is the first of an image."""
        begins = info.generation != self.info.generation
        if begins:
            self.rng.restart()
        self.info = info
        return begins


@dataclass
class PlanRecord:
    """A plan and when it was made, for one pass of the step."""

    plan: Plan
    key: tuple[Any, ...]
    selected_at: int
    weighed_at: int


Watcher = Callable[["PlanGroup", Tensor], None]
"""Is given a group, whose ``last`` plan is the one to be used, and the tokens ``(B, N, C)`` of the call."""

LAST_PASS = 7  # later calls of a step share a plan: a loop at one timestep must not pile up plans


class PlanGroup:
    """Sites that share a plan.

    Attributes:
        plan: the plan in use, renewed in place, so that compiled code keeps its graphs.
        active: whether tokens merge at this step.
        layout: what the call of the model shows.
        batch: samples in the call.
        needs_grad: whether gradients of the model's weights are wanted.
        proportional: whether keys of merged tokens count for as many tokens as they stand for.
        level: of the grid, 0 is the finest.
        depth: where in the model the group begins, from 0 to 1.
        whole: grid of the image.
        grid: of the tokens at hand: the same, unless several processes share them.
        order: regions that tokens come in the order of; ``None`` is raster order.
        records: plans by pass of the step.
        watcher: told whenever a call asks for a plan.
    """

    def __init__(
        self, name: str, method: Method, schedule: Schedule, context: StepContext, level: int, depth: float = 1.0
    ) -> None:
        self.name, self.method, self.schedule, self.context = name, method, schedule, context
        self.level, self.depth = level, depth
        self.plan: Plan | None = None
        self.active = self.needs_grad = self.proportional = False
        self.batch = 0
        self.layout: TokenLayout | None = None
        self.whole: Grid | None = None
        self.grid: Grid | None = None
        self.order: Layout | None = None
        self.records: dict[int, PlanRecord] = {}
        self.generation = -1
        self.plans_made = self.weights_made = 0
        self.bypassed: dict[str, int] = {}
        self.watcher: Watcher | None = None
        self.warn: Callable[[str], None] = _say_nothing
        self._last: Plan | None = None
        self._raster: tuple[Plan, Plan] | None = None
        self._renewed_for: StepInfo | None = None
        self._prepared: tuple[Any, ...] | None = None  # what the plan's shapes follow from
        self._taken: Plan | None = None  # whose state the plan in use has
        self._ordered: Method = method  # the method for tokens in that order
        self.handle = torch.tensor(next(_NUMBERS))
        _GROUPS[int(self.handle)] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanGroup:
        """A copied model gets groups of its own, with handles of their own; plans are made again."""
        context = copy.deepcopy(self.context, memo)
        memo[id(self)] = new = PlanGroup(self.name, self.method, self.schedule, context, self.level, self.depth)
        new.active, new.layout, new.needs_grad = self.active, self.layout, self.needs_grad
        new.whole, new.grid = self.whole, self.grid
        new.warn = copy.deepcopy(self.warn, memo)  # of the copy's own patch
        return new

    def ratio(self) -> float:
        """Share of tokens to remove."""
        return self.schedule.ratio(self.method.ratio, self.level)

    @property
    def last(self) -> Plan | None:
        """The plan that was used last, for tokens in raster order; the same object as long as it is the same plan."""
        if self._last is None or self.order is None:
            return self._last
        if self._raster is None or self._raster[0] is not self._last:
            self._raster = self._last, self._last.with_layout(self.order)
        return self._raster[1]

    # ------------------------------------------------------------------------------------------ plans
    def prepare(self, batch: int, dtype: torch.dtype, device: torch.device, by_region: bool = False) -> None:
        """Have a plan of the right shapes at hand before compiled code asks for one.

        With ``by_region``, tokens come in the order of the method's regions, if that spares copies.
        """
        assert self.grid is not None
        key, self.batch = (self.grid, batch, dtype, device, self.ratio(), by_region, self.method), batch
        if self._prepared != key:
            order = self.method.token_order(self.grid, device, dtype) if by_region else None
            if order is not self.order:  # plans for tokens in another order
                self.records.clear()
            self.order = order
            self._ordered = self.method if self.order is None else self.method.by_region()
            blank = torch.zeros(batch, self.grid.tokens, 1, dtype=dtype, device=device)
            self.plan = self._ordered.plan(blank, self.grid, ratio=self.ratio(), depth=self.depth)
            self.plan.renew([tensor.clone() for tensor in self.plan.state])  # no views: compiled code guards on them
            self._prepared, self._taken = key, None

    def renew(self, tokens: Tensor) -> None:
        """Bring the plan up to date from ``tokens`` ``(B, N + tail, C)``, if anything is due."""
        if torch.compiler.is_compiling():
            assert self.plan is not None
            self.plan.renew(renewed_state(tokens, self.handle, self.plan.state))
            return
        self._renewed_for = self.context.info
        current = self.current(tokens)
        if current is self._taken:  # nothing was due
            return
        self._taken = current
        if self.plan is None or not self.plan.fits(current):
            self.plan = copy.copy(current)
        else:
            self.plan.renew(current.state)

    def is_stale(self) -> bool:
        """Whether no site has asked yet, in this call of the model, if the plan is due."""
        return self.plan is None or self._renewed_for is not self.context.info

    def current(self, tokens: Tensor) -> Plan:
        """The plan for this call; ``tokens`` ``(B, N + tail, C)`` are looked at only if something is due."""
        assert self.grid is not None
        number, key = self._pass(), (self.grid, tokens.shape[0], tokens.dtype, tokens.device, self.ratio())
        image = tokens[:, : self.grid.tokens].detach()
        self.records[number] = self._renewed(self.records.get(number), self.records.get(0), key, image)
        self._last = self.records[number].plan
        if self.watcher is not None:
            self.watcher(self, image if self.order is None else self.order.restore(image))
        return self._last

    def _pass(self) -> int:
        """The pass of the step; the plans of another image are forgotten."""
        info = self.context.info
        if info.generation != self.generation:
            self.records.clear()
            self.generation = info.generation
        return min(info.pass_index, LAST_PASS)

    def _renewed(
        self, own: PlanRecord | None, first: PlanRecord | None, key: tuple[Any, ...], image: Tensor
    ) -> PlanRecord:
        """Later passes of a step take the destinations of its first, and weigh them by their own tokens."""
        info = self.context.info
        if info.pass_index > 0 and first is not None and first.key == key:
            if own is None or own.key != key or own.selected_at != first.selected_at:
                return self._reweighed(first, image)
        elif own is None or own.key != key:
            return self._selected(key, image)
        assert own is not None
        due = self.schedule.due(info.step, own.selected_at, own.weighed_at, info.total)
        if due is Due.SELECT and info.pass_index == 0:
            return self._selected(key, image)
        return self._reweighed(own, image) if due in (Due.REWEIGH, Due.SELECT) else own

    def _selected(self, key: tuple[Any, ...], image: Tensor) -> PlanRecord:
        assert self.grid is not None
        self.plans_made += 1
        passes = self.context.passes if len(image) % self.context.passes == 0 else 1
        rng, ratio, step = self.context.rng.generator, key[-1], self.context.info.step
        plan = self._ordered.plan(image, self.grid, ratio=ratio, passes=passes, generator=rng, depth=self.depth)
        return PlanRecord(plan, key, step, step)

    def _reweighed(self, record: PlanRecord, image: Tensor) -> PlanRecord:
        self.weights_made += 1
        plan = self._ordered.reweigh(record.plan, image)
        return PlanRecord(plan, record.key, record.selected_at, self.context.info.step)

    # ------------------------------------------------------------------------------------------ calls
    def note_bypass(self, where: str, reason: str) -> None:
        """Count a call that ran unmerged, and say so the first time."""
        key = f"{where}: {reason}"
        self.bypassed[key] = self.bypassed.get(key, 0) + 1
        self.warn(reason)

    def merge(self, tokens: Tensor, head: int = 0) -> Tensor:
        """``(B, head + N + tail, C)`` → ``(B, head + K + tail, C)``."""
        assert self.plan is not None
        return _inside(self.plan.merge, tokens, head, self.plan.tokens)

    def unmerge_add(self, merged: Tensor, residual: Tensor, head: int = 0) -> Tensor:
        """``residual`` ``(B, head + N + tail, C)`` plus ``merged`` ``(B, head + K + tail, C)`` unmerged."""
        assert self.plan is not None
        if merged.shape[1] != self.plan.kept:
            return residual + self.unmerge(merged, head)
        return self.plan.unmerge_add(merged, residual)

    def unmerge(self, merged: Tensor, head: int = 0) -> Tensor:
        """``(B, head + K + tail, C)`` → ``(B, head + N + tail, C)``."""
        assert self.plan is not None
        return _inside(self.plan.unmerge, merged, head, self.plan.kept)


def _inside(change: Callable[[Tensor], Tensor], tokens: Tensor, head: int, count: int) -> Tensor:
    """``tokens`` with the ``count`` of the grid changed, behind ``head`` others."""
    if tokens.shape[1] == count:
        return change(tokens)
    before, image, behind = tokens.split([head, count, tokens.shape[1] - head - count], dim=1)
    return torch.cat([before, change(image), behind], dim=1)


_NUMBERS = itertools.count()
_GROUPS: weakref.WeakValueDictionary[int, PlanGroup] = weakref.WeakValueDictionary()


def _say_nothing(_: str) -> None:
    """Until a patch gives its own."""


# Written out, since torch 2.6 cannot read list[Tensor] off a function.
_SCHEMA = "(Tensor tokens, Tensor handle, Tensor[] state) -> Tensor[]"


@torch.library.custom_op("tomadiff::renewed_state", mutates_args=(), schema=_SCHEMA)
def renewed_state(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - for its fake
    """The state of a group's current plan, for compiled code: one opaque node, so that no step number enters a graph.

    ``state`` tells the shapes; ``handle`` is a tensor, because a number would be compiled in.
    """
    return [tensor.clone() for tensor in _GROUPS[int(handle)].current(tokens).state]


@renewed_state.register_fake
def _(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - as the real one
    return [torch.empty_like(tensor) for tensor in state]
