"""What a window of steps costs by its shapes alone: traced on the meta device, predicted for a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from torch import nn

from tomadiff.cost import Hardware, Trace, trace
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
