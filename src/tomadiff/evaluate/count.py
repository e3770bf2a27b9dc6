"""Counting floating-point operations: of a model as it is, and of a window of denoising steps with merging.

Counted are matrix products, attention and convolutions, as torch's own counter sees them, on any device; the meta
device makes it quick and needs no weights. Merging, unmerging and planning are part of the model's call, so they are
counted with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tomadiff.methods.base import Method
from tomadiff.methods.tomesd import ToMeSD
from tomadiff.patch import Patch, apply
from tomadiff.schedule import Due, Schedule

WINDOW = 10


@dataclass(frozen=True)
class Count:
    """Operations of the calls in one window of steps.

    Attributes:
        each: operations of one call at which this was due; for a model without merging, of a ``SKIP``.
        steps: how many calls of each kind the window has.
    """

    each: Mapping[Due, int]
    steps: Mapping[Due, int]

    @property
    def flops(self) -> float:
        """Operations of the mean call of the window; a multiply-add is two."""
        return sum(self.each[due] * times for due, times in self.steps.items()) / sum(self.steps.values())

    @property
    def planning(self) -> float:
        """Those of them that make plans: what a call costs above one that reuses its plan."""
        return self.flops - self.reusing

    @property
    def reusing(self) -> int:
        """Operations of a call that makes no plan."""
        return min(self.each.values())


def count(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Operations of ``model(**inputs)``; a multiply-add is two."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return int(counter.get_total_flops())


def count_unmerged(model: nn.Module, inputs: Mapping[str, Any]) -> Count:
    """Operations of a model as it is."""
    return Count({Due.SKIP: count(model, inputs)}, {Due.SKIP: WINDOW})


def count_window(
    model: nn.Module,
    inputs: Mapping[str, Any],
    method: Method,
    schedule: Schedule | None = None,
    window: int = WINDOW,
) -> Count:
    """Operations of the first ``window`` steps with merging; one call of each kind is run and stands for its like."""
    schedule = schedule or method.schedule
    due = due_at(schedule, window)
    kinds = sorted(set(due), key=due.index)
    with apply(model, method, schedule=schedule) as patch:
        _call(patch, model, inputs, 0)  # at its first call a patch lays out plans; that is not a step's work
        patch.begin()
        each = {kind: _count_at(patch, model, inputs, due.index(kind)) for kind in kinds}
        if Due.REUSE not in each:
            each[Due.REUSE] = _count_reuse(patch, model, inputs)
    return Count(each, Counter(due))


def count_limit(model: nn.Module, inputs: Mapping[str, Any], ratio: float, skip: int | None = None) -> int:
    """Operations of one call if merging and planning cost nothing: tokens are moved by indexing, which counts nothing.

    Every op of every level merges; ``skip`` is as in :class:`~tomadiff.methods.base.Method`.
    """
    free = ToMeSD(ratio, random=False, levels=None, skip=skip, merge_cross_attention=True, merge_feed_forward=True)
    with apply(model, free) as patch:
        return _count_reuse(patch, model, inputs)


def due_at(schedule: Schedule, window: int) -> list[Due]:
    """What is due at each of the first ``window`` steps."""
    due: list[Due] = []
    selected = weighed = None
    for step in range(window):
        due.append(schedule.due(step, selected, weighed, window))
        selected = step if due[-1] is Due.SELECT else selected
        weighed = step if due[-1] in (Due.SELECT, Due.REWEIGH) else weighed
    return due


def _count_at(patch: Patch, model: nn.Module, inputs: Mapping[str, Any], step: int) -> int:
    patch.step(step)  # stated, because on the meta device a timestep cannot be read
    return count(model, inputs)


def _count_reuse(patch: Patch, model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Operations of a call after one that made a plan to keep."""
    patch.set(schedule=Schedule(destinations_every=WINDOW, weights_every=WINDOW))
    patch.begin()
    _call(patch, model, inputs, 0)
    return _count_at(patch, model, inputs, 1)


def _call(patch: Patch, model: nn.Module, inputs: Mapping[str, Any], step: int) -> None:
    patch.step(step)
    with torch.no_grad():
        model(**inputs)
