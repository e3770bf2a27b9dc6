"""Counting FLOPs (floating-point operations): of a model as it is, and of a window of denoising steps with merging.

Counted are matrix products, attention and convolutions, as torch's own counter sees them, on any device; the meta
device makes it quick and needs no weights. Merging, unmerging and planning are part of the model's call, so they are
counted with it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.cost import flop_counter
from tomadiff.merging.grid import Grid
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Method
from tomadiff.methods.tomesd import ToMeSD
from tomadiff.patch import Patch, apply
from tomadiff.steps.schedule import Due, Schedule

WINDOW = 10


@dataclass(frozen=True)
class Count:
    """FLOPs of the calls in one window of steps.

    Attributes:
        each: FLOPs of one call at which this was due.
        steps: how many calls of each kind the window has.
    """

    each: Mapping[Due, int]
    steps: Mapping[Due, int]

    @property
    def flops(self) -> float:
        """FLOPs of the mean call of the window; a multiply-add is two."""
        return sum(self.each[due] * times for due, times in self.steps.items()) / sum(self.steps.values())

    @property
    def planning(self) -> float:
        """Those of them that make plans: what a call costs above one that reuses its plan."""
        return self.flops - self.reusing

    @property
    def reusing(self) -> int:
        """FLOPs of a call that makes no plan."""
        return min(self.each.values())


def count(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """FLOPs of ``model(**inputs)``; a multiply-add is two."""
    with torch.no_grad(), flop_counter() as counter:
        model(**inputs)
    return int(counter.get_total_flops())


def count_kinds(
    model: nn.Module, inputs: Mapping[str, Any], method: Method, ratios: Schedule | None = None
) -> dict[Due, int]:
    """FLOPs of one call of each kind but ``SKIP``; they do not depend on how often it comes.

    One call that selects is run, and what its planning cost is taken off again for the others. ``ratios`` is a schedule
    that merges from the first step on, for those who give levels or ops a ratio of their own.
    """
    spent: Counter[Due] = Counter()
    with apply(model, _metered(method, spent), schedule=ratios, guard=False) as patch:
        _lay_out(patch, model, inputs)
        spent.clear()
        patch.step(0)  # stated, because on the meta device a timestep cannot be read
        total = count(model, inputs)
    reuse = total - spent[Due.SELECT] - spent[Due.REWEIGH]
    return {kind: reuse + spent[kind] for kind in (Due.SELECT, Due.REWEIGH, Due.REUSE)}


def _metered(method: Method, spent: Counter[Due]) -> Method:
    """The same method, which notes what planning costs, and what renewing each plan would."""
    kind = type(method)

    def plan(self: Method, tokens: Tensor, grid: Grid, **settings: Any) -> Plan:
        with flop_counter() as selecting:
            made = kind.plan(self, tokens, grid, **settings)
        with flop_counter() as reweighing:
            self.reweigh(made, tokens)
        spent[Due.SELECT] += selecting.get_total_flops()
        spent[Due.REWEIGH] += reweighing.get_total_flops()
        return made

    metered = copy.copy(method)
    object.__setattr__(metered, "__class__", type(kind.__name__, (kind,), {"plan": plan}))
    return metered


def count_limit(model: nn.Module, inputs: Mapping[str, Any], ratio: float, skip: int | None = None) -> int:
    """FLOPs of one call if merging and planning cost nothing: tokens are moved by indexing, which counts nothing.

    Every op of every level merges; ``skip`` is as in :class:`~tomadiff.methods.base.Method`.
    """
    free = ToMeSD(ratio, random=False, levels=None, skip=skip, merge_cross_attention=True, merge_feed_forward=True)
    return count_kinds(model, inputs, free)[Due.REUSE]


def _lay_out(patch: Patch, model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Stop the first call before the model runs: a patch lays out blank plans then, which is no step's work."""
    stop = model.register_forward_pre_hook(_stop)
    patch.step(0)
    with suppress(_Stopped), torch.no_grad():  # with gradients, plans would be laid out for another order of tokens
        model(**inputs)
    stop.remove()
    patch.begin()


class _Stopped(Exception):  # noqa: N818 - it is no error
    """Far enough."""


def _stop(*_: Any) -> None:
    raise _Stopped
