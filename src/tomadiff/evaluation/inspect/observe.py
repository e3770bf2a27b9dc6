"""Watching a model generate: the plans it uses at every step, and the hidden states of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tomadiff.engine.group import PlanGroup
from tomadiff.engine.hooks import RootHook, unwrap
from tomadiff.evaluation.runs import models
from tomadiff.families.base import ModelCall, TokenLayout
from tomadiff.families.registry import family_of
from tomadiff.merging.grid import Grid
from tomadiff.merging.plan import Plan
from tomadiff.steps.clock import Clock, StepInfo

Item = TypeVar("Item")


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` of ``items``, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / max(most - 1, 1))] for place in range(most)]


# ---------------------------------------------------------------------------------------------- plans
@dataclass(frozen=True)
class Look:
    """A group at one step.

    Attributes:
        step: which one.
        selected: whether the destinations in use were chosen at this step.
        coverage: of the destinations in use, on the tokens of this step.
        fresh: of destinations chosen at this step.
        destinations: ``(K,)`` raster indices of the latter, those of the guided sample.
    """

    step: int
    selected: bool
    coverage: float
    fresh: float
    destinations: Tensor = field(repr=False)


@dataclass
class Watched:
    """What was seen of a group; ``plan`` and ``tokens`` ``(B, N, C)`` are those of the last step."""

    name: str
    group: PlanGroup
    plan: Plan
    tokens: Tensor
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = torch.Generator().manual_seed(self.group.method.seed)

    @property
    def grid(self) -> Grid:
        """Of the group's tokens."""
        return self.plan.grid

    def new_plan(self) -> Plan:
        """A plan made from the tokens at hand, whatever the schedule says; the image's random numbers stay."""
        group, passes = self.group, self.group.context.passes
        return group.method.plan(
            self.tokens,
            self.grid,
            ratio=group.ratio(),
            passes=passes if self.tokens.shape[0] % passes == 0 else 1,
            generator=self._rng,
            depth=group.depth,
        )

    def new_weights(self) -> Plan:
        """The plan in use, with weights made from the tokens at hand."""
        return self.group.method.reweigh(self.plan, self.tokens)

    def look(self, tokens: Tensor) -> None:
        """Note the step whose ``tokens`` ``(B, N, C)`` these are."""
        step, kept = self.group.context.info.step, self.group.records[0]
        self.plan, self.tokens = kept.plan, tokens
        fresh = kept.plan if kept.selected_at == step else self.new_plan()
        used = kept.plan if kept.weighed_at == step else self.new_weights()
        found = fresh.destinations[-1].cpu()
        self.looks.append(Look(step, kept.selected_at == step, _mean(used), _mean(fresh), found))


def _mean(plan: Plan) -> float:
    return float(plan.coverage.float().mean())


class Watcher:
    """Follows the groups of these names while a patched pipeline generates: ``patch.watch(Watcher(names))``."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.watched: dict[str, Watched] = {}

    def __call__(self, name: str, group: PlanGroup, tokens: Tensor) -> None:
        """See :meth:`tomadiff.patch.Patch.watch`; later passes of a step share the destinations of its first."""
        if name not in self.names or group.context.info.pass_index > 0:
            return
        assert group.last is not None
        own = self.watched.setdefault(name, Watched(name, group, group.last, tokens))
        own.look(tokens)


# ---------------------------------------------------------------------------------------------- hidden states
@dataclass(frozen=True)
class Place:
    """A block of a model: its number from 0 in the order they run, of how many, and the stack it belongs to."""

    number: int
    total: int
    stack: str


Seen = Callable[[Place, int, Tensor, Grid], None]
"""``(block, step, tokens (N, C), grid)``: what a block is given, of the guided sample."""


class HiddenStates:
    """Shows the hidden states at the start of some blocks at some steps, while a pipeline without a patch generates.

    A context manager: its hooks come off at the end. At most ``blocks`` blocks and ``steps`` steps are shown, evenly
    spaced, the first and the last among them.
    """

    def __init__(self, pipe: Any, seen: Seen, blocks: int = 8, steps: int = 6) -> None:
        self.pipe, self.seen, self.steps = pipe, seen, steps
        self.outer = models.denoiser(pipe)
        self.model = unwrap(self.outer)
        self.family = family_of(self.model)
        stacks = self.family.stacks(self.model)
        every = [(stack.name, block) for stack in stacks for block in stack.blocks]
        places = [Place(number, len(every), stack) for number, (stack, _) in enumerate(every)]
        self.blocks = spread([(place, block) for place, (_, block) in zip(places, every, strict=True)], blocks)
        self.depths = {stack.name: stack.depth for stack in stacks}
        self.clock, self.info, self.layout = Clock(), StepInfo(0, 0, 0), TokenLayout({})

    def __enter__(self) -> HiddenStates:
        self._watch = RootHook(self.outer, self._before_call)
        self._hooks = [
            block.register_forward_pre_hook(_Hook(self, place, self._sequence(block)), with_kwargs=True)
            for place, block in self.blocks
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        for hook in self._hooks:
            hook.remove()

    def _before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = ModelCall(self.model, args, kwargs, self.family)
        self.info = self.clock.step_info(call.timestep, self.pipe.scheduler)
        self.layout = self.family.token_layout(self.model, call) or TokenLayout({})

    def _sequence(self, block: nn.Module) -> str:
        described = self.family.block(block)
        return "" if described is None else described.sequence

    def show(self, place: Place, sequence: str, tokens: Tensor) -> None:
        """Pass on what a block was given, if this is a step to show; ``(B, head + N + tail, C)``."""
        grid, info, (head, _) = self.layout.grids.get(self.depths[place.stack]), self.info, self.layout.around(sequence)
        if grid is not None and info.pass_index == 0 and info.step in spread(range(info.total or 1), self.steps):
            self.seen(place, info.step, tokens[-1, head : head + grid.tokens].detach(), grid)


@dataclass(frozen=True)
class _Hook:
    """Before a block is called: its tokens come first, or by name."""

    owner: HiddenStates
    place: Place
    sequence: str

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.owner.show(self.place, self.sequence, args[0] if args else kwargs["hidden_states"])
