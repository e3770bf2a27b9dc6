"""Walking a model in the order it runs: which calls are wrapped, and which of them share a slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from tomadiff.engine.calls import calls_to_wrap
from tomadiff.engine.planner import Moment, Planner
from tomadiff.engine.sites import Site
from tomadiff.engine.slots import Slot
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.families.base import Family, Stack
from tomadiff.families.registry import describe_supported
from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Schedule


class Survey:
    """What there is to merge in a model with these settings; raises if that is nothing.

    Attributes:
        slots: in the order they are met.
        sites: every module to wrap, and its site.
        homes: slots by the module whose blocks they are in.
        depths: of each slot's grid, by name.
        skipped: first blocks that stay unmerged.
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        method: Method,
        schedule: Schedule,
        moment: Moment,
        warn: Callable[[str], None],
    ) -> None:
        self.model, self.family, self.method, self.schedule = model, family, method, schedule
        self.moment, self.warn = moment, warn
        self.slots: list[Slot] = []
        self.sites: list[tuple[nn.Module, Site]] = []
        self.homes: dict[nn.Module | None, list[Slot]] = {}
        self.depths: dict[str, int] = {}
        self._known: dict[str, Slot] = {}
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
            slot = self._known.get(key) or self._new_slot(key, level, stack.depth, place / total)
            leads = key not in self._known
            self._known[key] = slot
            stack_slots = self.homes.setdefault(stack.home, [])
            if slot not in stack_slots:
                stack_slots.append(slot)
            where = f"{stack.name}.{list(stack.blocks).index(module)}{call.path}"
            site = Site(slot, where, call.kind, leads, call.rotary, call.outputs, call.joint, call.key_bias)
            self.sites.append((call.module, site))

    def _new_slot(self, name: str, level: int, depth: int, progress: float) -> Slot:
        method = settled(self.method, self.family)
        slot = Slot(name, Planner(method, self.schedule, self.moment, level, progress))
        slot.warn = self.warn
        self.slots.append(slot)
        self.depths[name] = depth
        return slot


def settled(method: Method, family: Family) -> Method:
    """``method`` with what it leaves open as suits the family.

    Samples share destinations as the family needs it, unless each is to have its own.
    """
    if family.share is not None and method.share != "sample":
        method = replace(method, share=family.share)
    return method.completed_by(family.defaults)
