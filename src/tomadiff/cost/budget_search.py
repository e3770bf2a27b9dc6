"""What calls of a model cost without and with merging, at any ratio, before any of them is made.

They are counted on a copy of the model on the meta device, which has shapes alone. So no weight is read, moved or
computed with, and hooks, offloading, quantised weights and compiled code of the real model are none of our business.
The copy runs once, unmerged. Whatever ratio is asked for afterwards, only the wrapped calls are run again, one of each
size, and one plan of each size is made.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tomadiff.cost.budget import RatioChoice, Shares
from tomadiff.cost.guard import Guard, Scale, python_around
from tomadiff.cost.trace import Trace, trace
from tomadiff.engine.group import PlanGroup
from tomadiff.engine.site import Site
from tomadiff.errors import SettingError
from tomadiff.steps.schedule import Due

META = torch.device("meta")
_NOT_REBUILT = {"encoder_hid_dim_type": "ip_image_proj"}  # set by IP-Adapter, unknown to those who build UNets


def meta_copy_of(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model anew, on the meta device; LoRA, image prompts and the like are left out."""
    config = getattr(model, "config", None)
    if config is None:
        raise SettingError(
            f"A budget needs a model that says how it was built, and {type(model).__name__} has no config; "
            "give ratio=… instead."
        )
    wanted = inspect.signature(type(model).__init__).parameters
    known = {name: config[name] for name in wanted if name in config and _NOT_REBUILT.get(name) != config[name]}
    with torch.random.fork_rng(devices=[]), META:
        copied = type(model)(**known).eval()
    return nn.Module.to(copied, META, dtype)  # diffusers' own warns about weights that should stay as they were loaded


def on_meta(arguments: Any, dtype: torch.dtype) -> Any:
    """The same shapes; floats as the copy wants them."""

    def blank(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty(value.shape, dtype=dtype if value.is_floating_point() else value.dtype, device=META)

    return tree_map(blank, arguments)


@dataclass(frozen=True)
class _Wrapped:
    """Wrapped calls that are alike: one of them, how many there are, and what it costs unmerged."""

    module: nn.Module
    site: Site
    given: tuple[Any, ...]
    named: dict[str, Any]
    unmerged: Trace
    times: int

    def call(self) -> None:
        """Run it, merged if its group says so."""
        self.module(*self.given, **self.named)


@dataclass
class BudgetSearch:
    """Counts the calls of one copy.

    Attributes:
        sites: of the copy.
        groups: of the copy, which know the grids of the call.
        batch: samples of the call.
        dtype: of its hidden states.
        by_region: whether tokens come in the order of the plans' regions.
        passes: guidance passes stacked in the batch.
        guard: of the copy, if sites that do not pay stay unmerged.
        scale: of the real call, for the guard.
    """

    sites: Sequence[tuple[nn.Module, Site]]
    groups: Sequence[PlanGroup]
    batch: int
    dtype: torch.dtype
    by_region: bool
    passes: int
    guard: Guard | None = None
    scale: Scale | None = None
    _calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict, repr=False)
    _known: dict[tuple[Any, ...], dict[Due, Trace]] = field(default_factory=dict, repr=False)

    def open(self, call: Callable[[], Any]) -> None:
        """Run the copy once, unmerged, and note what its wrapped calls are given."""
        for group in self.groups:
            group.active = False
        for place, (_, site) in enumerate(self.sites):
            site.inner = self._noting(place, site.inner)
        self.schedule = self.groups[0].schedule
        self.whole = trace(call, warm=True)
        self.wrapped = self._grouped()
        inside = reduce(add, (one.unmerged.scaled(one.times) for one in self.wrapped), Trace())
        self.rest = Trace(self.whole.ops - inside.ops)

    def _noting(self, place: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        def noted(module: nn.Module, *given: Any, **named: Any) -> Any:
            self._calls.setdefault(place, (given, named))
            return inner(module, *given, **named)

        return noted

    def _grouped(self) -> list[_Wrapped]:
        alike: dict[Any, list[int]] = {}
        for place, (module, site) in enumerate(self.sites):
            if site.kind != "plan" and place in self._calls:  # blocks that only plan hold the ops that merge
                key = (*_like(site), type(module), shapes_in(list(module.parameters())), shapes_in(self._calls[place]))
                alike.setdefault(key, []).append(place)
        return [self._group(places[0], len(places)) for places in alike.values()]

    def _group(self, place: int, times: int) -> _Wrapped:
        (module, site), (given, named) = self.sites[place], self._calls[place]
        return _Wrapped(module, site, given, named, trace(lambda: module(*given, **named)), times)

    # ------------------------------------------------------------------------------------------ at a ratio
    def shares(self, ratio_choice: RatioChoice, measure: Callable[[Trace], float]) -> Shares:
        """What a call costs by what is due, as a share of an unmerged one; ``measure`` says what of a trace counts."""
        for group in self.groups:
            self._set(group, ratio_choice)
        key = tuple(self._kept(one.site.group) for one in self.wrapped)
        if key not in self._known:
            self._known[key] = self._counted()
        whole = measure(self.whole)
        return {due: measure(found) / whole for due, found in self._known[key].items()}

    def _set(self, group: PlanGroup, ratio_choice: RatioChoice) -> None:
        group.method, group.schedule = replace(group.method, ratio=ratio_choice.ratio), ratio_choice.on(self.schedule)
        group.active = group.grid is not None and group.ratio() > 0
        if group.active and self.guard is not None and self.scale is not None:
            group.active = self.guard.admits(group, self.scale)

    def _kept(self, group: PlanGroup) -> tuple[int, ...]:
        """Tokens that its plan keeps, and which of its sites merge; the plan is laid out for that."""
        if not group.active:
            return ()
        group.prepare(self.batch, self.dtype, META, self.by_region)
        assert group.plan is not None
        return group.plan.kept, *(site.profitable for _, site in self.sites if site.group is group)

    def _counted(self) -> dict[Due, Trace]:
        ops = reduce(add, (self._merged(one).scaled(one.times) for one in self.wrapped), self.rest)
        ops += python_around(groups=sum(group.active for group in self.groups))
        selecting, reweighing = self._planning()
        return {Due.SKIP: self.whole, Due.REUSE: ops, Due.SELECT: ops + selecting, Due.REWEIGH: ops + reweighing}

    def _merged(self, one: _Wrapped) -> Trace:
        if not one.site.group.active or not one.site.profitable:
            return one.unmerged
        with torch.no_grad():
            one.call()  # makes the plan, which the next one finds
        return trace(one.call) + python_around(sites=1)

    def _planning(self) -> tuple[Trace, Trace]:
        """All groups that merge: choosing destinations, and renewing weights."""
        alike: Counter[tuple[Any, ...]] = Counter()
        example: dict[tuple[Any, ...], tuple[PlanGroup, Tensor]] = {}
        for group, tokens in self._planned_from():
            key = (*_like_group(group), tuple(tokens.shape))
            alike[key] += 1
            example[key] = group, tokens
        selecting = reweighing = Trace()
        for key, times in alike.items():
            chosen, weighed = self._one_plan(*example[key])
            selecting, reweighing = selecting + chosen.scaled(times), reweighing + weighed.scaled(times)
        return selecting, reweighing

    def _planned_from(self) -> list[tuple[PlanGroup, Tensor]]:
        """Each group that merges, and blank tokens ``(B, N, C)`` such as the first site that runs gives it."""
        first: dict[str, tuple[PlanGroup, Tensor]] = {}
        for place, (given, _) in self._calls.items():
            group, grid = self.sites[place][1].group, self.sites[place][1].group.grid
            if group.active and grid is not None and group.name not in first:
                batch, _, width = given[0].shape
                first[group.name] = group, torch.empty(batch, grid.tokens, width, dtype=given[0].dtype, device=META)
        return list(first.values())

    def _one_plan(self, group: PlanGroup, tokens: Tensor) -> tuple[Trace, Trace]:
        made, grid, rng = list[Any](), group.grid, group.context.rng.generator
        assert grid is not None
        method = group.method if group.order is None else group.method.by_region()
        passes = self.passes if tokens.shape[0] % self.passes == 0 else 1
        plan = partial(method.plan, ratio=group.ratio(), passes=passes, generator=rng, depth=group.depth)
        selecting = trace(lambda: made.append(plan(tokens, grid)), warm=True)
        reweighing = trace(lambda: method.reweigh(made[0], tokens), warm=True)
        return selecting, reweighing


def _like_group(group: PlanGroup) -> tuple[Any, ...]:
    """Groups with equal ones plan alike; some methods treat early and late blocks differently."""
    return group.grid, group.level, group.layout and group.layout.surroundings, round(group.depth)


def _like(site: Site) -> tuple[Any, ...]:
    return (*_like_group(site.group), site.kind, site.facts.joint, site.facts.outputs, site.facts.sequence)


def shapes_in(tree: Any) -> tuple[tuple[int, ...], ...]:
    """Of every tensor in a nest of arguments."""
    return tuple(tuple(leaf.shape) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
