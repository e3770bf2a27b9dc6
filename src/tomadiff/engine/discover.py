"""Walking a model in the order it runs: which calls are wrapped, and which of them share a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import nn

from tomadiff.engine.group import PlanGroup, StepContext
from tomadiff.engine.site import Site, SiteKind
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.families.base import Block, Family, Op, OpKind, Stack
from tomadiff.families.registry import describe_supported
from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Schedule


@dataclass(frozen=True)
class Wrapped:
    """A module to inject, and what its site needs to know; see :class:`tomadiff.engine.site.Site`."""

    module: nn.Module
    kind: SiteKind
    facts: Op | Block
    path: str = ""


def calls_to_wrap(block: nn.Module, described: Block, method: Method) -> Iterator[Wrapped]:
    """The whole block, or the ops that are there and switched on, in the order they run."""
    if method.pools:
        yield from _ops(block, described.ops + described.pooled, ("attention",), pooled=True)
    elif not described.only_ops and (method.span == "block" or not described.ops):
        yield Wrapped(block, "block", described)
    else:
        if method.plans_from == "block":
            yield Wrapped(block, "plan", replace(described, rotary=None, rows=(), whole=""))  # nothing is merged here
        kinds = tuple(op.kind for op in described.ops if getattr(method, f"merge_{op.kind}"))
        yield from _ops(block, described.ops, kinds)


def _ops(block: nn.Module, ops: tuple[Op, ...], kinds: tuple[OpKind, ...], pooled: bool = False) -> Iterator[Wrapped]:
    for op in ops:
        module = getattr(block, op.path, None)
        if isinstance(module, nn.Module) and op.kind in kinds:
            yield Wrapped(module, "pooled" if pooled else op.kind, op, f".{op.path}")


class Discovery:
    """What there is to merge in a model with these settings; raises if that is nothing.

    Attributes:
        groups: in the order they are met.
        sites: every module to wrap, and its site.
        homes: groups by the module whose blocks they are in.
        depths: of each group's grid, by name.
        skipped: first blocks that stay unmerged.
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        method: Method,
        schedule: Schedule,
        context: StepContext,
        warn: Callable[[str], None],
    ) -> None:
        self.model, self.family, self.method, self.schedule = model, family, method, schedule
        self.context, self.warn = context, warn
        self.groups: list[PlanGroup] = []
        self.sites: list[tuple[nn.Module, Site]] = []
        self.homes: dict[nn.Module | None, list[PlanGroup]] = {}
        self.depths: dict[str, int] = {}
        self._known: dict[str, PlanGroup] = {}
        stacks = family.stacks(model)
        blocks = [(stack, block) for stack in stacks for block in stack.blocks]
        self.skipped = self._blocks_to_skip(len(blocks))
        levels = {depth: level for level, depth in enumerate(sorted({stack.depth for stack in stacks if stack.blocks}))}
        self._require_levels(len(levels))
        for place, (stack, module) in enumerate(blocks):
            level = levels[stack.depth]
            if place >= self.skipped and (method.levels is None or level in method.levels):
                self._add_block(module, stack, level, place, len(blocks))
        if not self.sites:
            raise UnsupportedModelError(self._nothing_matched([module for _, module in blocks]))

    def _blocks_to_skip(self, total: int) -> int:
        if self.method.skip is not None:
            return self.method.skip
        return round(self.family.skip * total)

    def _require_levels(self, count: int) -> None:
        beyond = [level for level in self.method.levels or () if level >= count]
        if beyond and count:
            raise SettingError(
                f"levels={self.method.levels} is not possible: {type(self.model).__name__} has {count} levels with "
                f"attention, numbered from 0 (the finest) to {count - 1}."
            )

    def _nothing_matched(self, blocks: list[nn.Module]) -> str:
        found = ", ".join(sorted({type(block).__name__ for block in blocks})) or "none"
        known = ", ".join(block.name for block in self.family.blocks)
        return (
            f"Nothing to merge in {type(self.model).__name__}: it has {len(blocks)} blocks (classes: {found}; known "
            f"in this family: {known}), of which the first {self.skipped} are skipped. Skip fewer blocks, or leave "
            f"fewer ops out. {describe_supported()}"
        )

    def _add_block(self, module: nn.Module, stack: Stack, level: int, place: int, total: int) -> None:
        described = self.family.block(module)
        if described is None:
            self.warn(f"blocks of the class {type(module).__name__} are not known")
            return
        key = {"level": f"level {level}", "block": f"block {place}"}[self.method.scope]
        for call in calls_to_wrap(module, described, self.method):
            group = self._known.get(key) or self._new_group(key, level, stack.depth, place / total)
            first_in_group = key not in self._known
            self._known[key] = group
            at_home = self.homes.setdefault(stack.home, [])
            if group not in at_home:
                at_home.append(group)
            where = f"{stack.name}.{list(stack.blocks).index(module)}{call.path}"
            self.sites.append((call.module, Site(group, where, call.kind, call.facts, first_in_group)))

    def _new_group(self, name: str, level: int, depth: int, progress: float) -> PlanGroup:
        method = for_family(self.method, self.family)
        group = PlanGroup(name, method, self.schedule, self.context, level, progress)
        group.warn = self.warn
        self.groups.append(group)
        self.depths[name] = depth
        return group


def for_family(method: Method, family: Family) -> Method:
    """``method`` with what it leaves open as suits the family.

    Samples share destinations as the family needs it, unless each is to have its own.
    """
    if family.share is not None and method.share != "sample":
        method = replace(method, share=family.share)
    return method.completed_by(family.defaults)
