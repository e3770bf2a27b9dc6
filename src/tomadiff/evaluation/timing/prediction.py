"""What a window of steps costs by its shapes alone: counted on the meta device, and predicted for a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import nn

from tomadiff import kernels
from tomadiff.cost import Hardware, Trace, trace
from tomadiff.evaluation.timing.architectures import build, inputs
from tomadiff.evaluation.timing.workloads import Part, Step
from tomadiff.families.registry import family_of
from tomadiff.methods.base import Method
from tomadiff.patch import apply
from tomadiff.steps.schedule import Schedule


@dataclass(frozen=True)
class Window:
    """The mean step of a window of ten.

    Attributes:
        parts: share and trace of each kind of step (selecting, reweighing, plain).
    """

    parts: Mapping[str, tuple[float, Trace]]

    @property
    def mean(self) -> Trace:
        """The mean step; bytes alive are those of the worst."""
        return reduce(add, (found.scaled(share) for share, found in self.parts.values()))

    def seconds(self, machine: Hardware) -> float:
        """Of the mean step."""
        return sum(share * machine.seconds(found) for share, found in self.parts.values())


def window(
    model: nn.Module, given: Mapping[str, Any], method: Method | None, schedule: Schedule | None = None
) -> Window:
    """A window of ``model(**given)`` with ``method`` merging wherever it says; ``None`` does not merge."""
    step = Step(model, "", given)
    blocks = [block for stack in family_of(model).stacks(model) for block in stack.blocks]
    if method is None:
        return Window(dict(_traced(part, blocks) for part in step.parts(None)))
    with apply(model, method, schedule=schedule, guard=False) as patch:
        step.warm(patch)  # blank plans are laid out at the first call, which is no step's work
        return Window(dict(_traced(part, blocks) for part in step.parts(patch)))


def _traced(part: Part, blocks: list[nn.Module]) -> tuple[str, tuple[float, Trace]]:
    return part.name, (part.share, trace(part.call, inside=blocks))


@dataclass(frozen=True)
class Prediction:
    """What the mean step of a window is expected to take.

    Attributes:
        flops, moved, launches, peak: see :class:`~tomadiff.cost.Trace`.
        seconds: on the machine that was asked for.
        speed_up: over the unmerged model.
    """

    flops: float
    moved: float
    launches: float
    peak: int
    seconds: float
    speed_up: float


def predict(
    arch: str,
    method: Method | None,
    machine: Hardware,
    size: int | None = None,
    *,
    depth: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Prediction:
    """What ``method`` would take on a published architecture at ``size``² pixels, on a machine one need not have."""
    model, given = build(arch, "meta", depth, dtype), inputs(arch, size, "meta", batch, dtype)
    before = window(model, given, None)
    with kernels.assumed(machine.fuses):
        after = window(model, given, method)
    mean, seconds = after.mean, after.seconds(machine)
    faster = before.seconds(machine) / seconds
    return Prediction(mean.flops, mean.moved, mean.launches, mean.peak, seconds, faster)
