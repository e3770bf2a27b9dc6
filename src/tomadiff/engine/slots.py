"""Where sites share a plan.

Compiled code sees only a :class:`Slot`'s plan (tensors of fixed shapes), a few flags and a handle. Everything that
changes from step to step lives in the slot's :class:`~tomadiff.engine.planner.Planner`, which runs outside of graphs:
directly in eager mode, as an opaque operator inside compiled code.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tomadiff.engine.planner import Planner
from tomadiff.merging.grid import Layout
from tomadiff.merging.plan import Plan
from tomadiff.steps.clock import Tick


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
        proportional: whether keys of merged tokens count for as many tokens as they stand for.
        planner: makes plans; never touched by compiled code.
    """

    def __init__(self, name: str, planner: Planner) -> None:
        self.name = name
        self.plan: Plan | None = None
        self.active = False
        self.tail = self.batch = self.turn = 0
        self.trains = self.reuses = self.proportional = False
        self.planner = planner
        self.bypassed: dict[str, int] = {}
        self._renewed_for: Tick | None = None
        self._taken: Plan | None = None  # the planner's plan that ours has the state of
        self.warn: Callable[[str], None] = _say_nothing
        self.handle = torch.tensor(next(_NUMBERS))
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


# Written out, since torch 2.6 cannot read list[Tensor] off a function.
_SCHEMA = "(Tensor tokens, Tensor handle, Tensor[] state) -> Tensor[]"


@torch.library.custom_op("tomadiff::renewed_state", mutates_args=(), schema=_SCHEMA)
def renewed_state(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - for its fake
    """The state of a slot's current plan, for compiled code: one opaque node, so that no step number enters a graph.

    ``state`` tells the shapes; ``handle`` is a tensor, because a number would be compiled in.
    """
    return [tensor.clone() for tensor in _SLOTS[int(handle)].planner.current(tokens).state]


@renewed_state.register_fake
def _(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - as the real one
    return [torch.empty_like(tensor) for tensor in state]
