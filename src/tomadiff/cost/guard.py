"""The break-even guard: tokens stay unmerged where merging would take longer than it saves.

Every wrapped call is estimated twice, with and without merging, from its shapes and the constants of a named machine
(:mod:`tomadiff.cost`). No clock is read, so the same kind of device with the same number of threads decides alike,
however busy it is. It is decided once for each size of image and kept, so nothing flips between the steps of one, and
compiled code keeps its graphs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tomadiff import kernels
from tomadiff.cost.hardware import Hardware
from tomadiff.cost.op import Op
from tomadiff.cost.trace import Trace, trace
from tomadiff.cost.work import Work, work_of
from tomadiff.engine.group import PlanGroup
from tomadiff.engine.site import Site
from tomadiff.families.base import Family
from tomadiff.merging.plan import Plan

SLACK = 0.05  # share of its time that a call may lose by the estimate, which is not exact; all of a group may lose none
_AROUND = 14  # launches that the Python around a wrapped call takes the time of; measured on small models
_BEFORE = 30  # the same for what is done once per group, before a call of the model and at its first site


@dataclass(frozen=True)
class Scale:
    """The size of a call of the model.

    Attributes:
        batch: samples.
        text: text tokens that take part in attention.
        dtype: of hidden states.
        device: where.
        by_region: whether tokens come in the order of the plans' regions, where that spares copies.
        threads: that torch computes with.
    """

    batch: int
    text: int
    dtype: torch.dtype
    device: torch.device
    by_region: bool
    threads: int = 1

    @classmethod
    def of(cls, image: Tensor, text: Any, dtype: torch.dtype, by_region: bool) -> Scale | None:
        """Of a call with these tensors; ``None`` where nothing is computed: on the meta device, with fake tensors."""
        if image.is_meta or isinstance(image, FakeTensor):
            return None
        tokens = text.shape[1] if isinstance(text, Tensor) and text.dim() == 3 else 0
        return cls(image.shape[0], tokens, dtype, image.device, by_region, torch.get_num_threads())

    @property
    def machine(self) -> Hardware:
        """What the call is expected to run on."""
        return Hardware.of(self.device, self.dtype, self.threads)


@dataclass(frozen=True)
class Verdict:
    """What the guard expects of one group at one size.

    Attributes:
        profitable: for each of the group's sites, whether it shall merge.
        unmerged: seconds of all of them per call, unmerged.
        merged: the same where the profitable ones merge, with planning.
        machine: what they run on, and where its constants are from.
    """

    profitable: tuple[bool, ...]
    unmerged: float
    merged: float
    machine: str = ""

    @property
    def admits(self) -> bool:
        """Whether the group shall merge at all; what shows nothing to judge by may."""
        return self.unmerged == 0 or self.merged < self.unmerged

    @property
    def speedup(self) -> float | None:
        """What is expected; ``None`` where nothing showed anything to judge by."""
        return self.unmerged / self.merged if self.merged else None

    @property
    def left_out(self) -> int:
        """Sites that stay unmerged."""
        return len(self.profitable) - sum(self.profitable) if self.admits else len(self.profitable)


@dataclass(frozen=True)
class Extra:
    """What merging adds, for one kind of plan.

    Attributes:
        kept: tokens that are left.
        around: one wrapped call, by kind of site; ``"op"`` stands for those that are not named.
        planning: one call of the model, in the mean.
    """

    kept: int
    around: dict[str, Trace]
    planning: Trace


@dataclass
class Guard:
    """Decides for the sites of one patched model.

    Attributes:
        family: the model's.
        sites: all of its sites.
        verdicts: the one in force for each group, by name.
    """

    family: Family
    sites: list[tuple[nn.Module, Site]]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _known: dict[Any, Verdict] = field(default_factory=dict, repr=False)
    _extras: dict[Any, Extra] = field(default_factory=dict, repr=False)

    def admits(self, group: PlanGroup, scale: Scale) -> bool:
        """Whether ``group`` merges in a call of this size; tells its sites whether they do."""
        ratio = group.ratio()
        key = (group.name, group.grid, group.layout and group.layout.surroundings, ratio, scale)
        if key not in self._known:
            self._known[key] = self._judged(group, ratio, scale)
        verdict = self._known[key]
        if self.verdicts.get(group.name) is not verdict:
            self.verdicts[group.name] = verdict
            for (_, site), profitable in zip(self._sites_of(group), verdict.profitable, strict=True):
                site.profitable = profitable
        return verdict.admits

    def describe(self) -> str:
        """What is decided, what is expected of it, and for which machine; empty before the first call."""
        verdicts = list(self.verdicts.values())
        if not verdicts:
            return ""
        sites, left_out = sum(len(one.profitable) for one in verdicts), sum(one.left_out for one in verdicts)
        unmerged = sum(one.unmerged for one in verdicts)
        merged = sum(one.merged if one.admits else one.unmerged for one in verdicts)
        expected = f"; expected speed-up of these layers: {unmerged / merged:.2f}×" if merged else ""
        return f"{sites - left_out} of {sites} sites merge{expected} on {verdicts[-1].machine}"

    def _sites_of(self, group: PlanGroup) -> list[tuple[nn.Module, Site]]:
        return [(module, site) for module, site in self.sites if site.group is group]

    # ------------------------------------------------------------------------------------------ the estimate
    def _judged(self, group: PlanGroup, ratio: float, scale: Scale) -> Verdict:
        machine = scale.machine
        profitable: list[bool] = []
        unmerged = merged = planning = 0.0
        for module, site in self._sites_of(group):
            work = self._work(module, site)
            if work is None:  # it only plans, or shows nothing to judge by
                profitable.append(True)
                continue
            extra = self._extra(group, ratio, scale, work.width)
            before, after = _both(work, site, scale, extra, machine)
            profitable.append(after < (1 + SLACK) * before)
            unmerged, merged = unmerged + before, merged + (after if profitable[-1] else before)
            planning = max(planning, machine.seconds(extra.planning))
        return Verdict(tuple(profitable), unmerged, merged + planning, str(machine))

    def _work(self, module: nn.Module, site: Site) -> Work | None:
        if site.kind == "plan":
            return None
        described = self.family.block(module)
        if described is None:
            return work_of(site.kind, module, joint=site.facts.joint)
        inside = [(op.kind, getattr(module, op.path, None)) for op in described.ops]
        joint = any(op.joint for op in described.ops + described.pooled)
        return work_of(site.kind, module, [(kind, op) for kind, op in inside if isinstance(op, nn.Module)], joint)

    def _extra(self, group: PlanGroup, ratio: float, scale: Scale, width: int) -> Extra:
        """Plans of equal settings cost alike, except that some methods treat early and late blocks differently."""
        late = round(group.depth)
        key = (group.grid, ratio, scale, width, late)
        if key not in self._extras:
            self._extras[key] = _extra(group, ratio, scale, width, float(late))
        return self._extras[key]


def _both(work: Work, site: Site, scale: Scale, extra: Extra, machine: Hardware) -> tuple[float, float]:
    """Seconds of one call of ``site`` without and with merging."""
    grid, others = site.group.grid, sum(site.around)
    assert grid is not None
    size = scale.batch, grid.tokens + others, scale.text, scale.dtype
    around = extra.around.get(site.kind, extra.around["op"])
    return machine.seconds(work.trace(*size)), machine.seconds(work.trace(*size, extra.kept + others) + around)


def _extra(group: PlanGroup, ratio: float, scale: Scale, width: int, depth: float) -> Extra:
    """Make and use a plan on the meta device, and see what it would take."""
    with kernels.assumed(kernels.fused("auto", scale.device, scale.dtype, 1)):
        return _traced(group, ratio, scale, width, depth)


def _traced(group: PlanGroup, ratio: float, scale: Scale, width: int, depth: float) -> Extra:
    method, schedule, grid = group.method, group.schedule, group.grid
    assert grid is not None
    tokens = torch.empty(scale.batch, grid.tokens, width, dtype=scale.dtype, device="meta")
    plans: list[Plan] = []
    if scale.by_region and method.token_order(grid, tokens.device, scale.dtype) is not None:
        method = method.by_region()
    selecting = trace(lambda: plans.append(method.plan(tokens, grid, ratio=ratio, depth=depth)), warm=True)
    reweighing = trace(lambda: method.reweigh(plans[0], tokens), warm=True)
    plan = plans[0]
    merged = plan.merge(tokens)
    around = {
        "op": trace(lambda: plan.unmerge(plan.merge(tokens)), warm=True),
        "block": trace(lambda: plan.unmerge_add(plan.merge(tokens) - merged, tokens), warm=True),
        "pooled": trace(lambda: plan.merge(tokens), warm=True),
    }
    selected, weighed = (1 / interval for interval in schedule.intervals)
    planning = selecting.scaled(selected) + reweighing.scaled(max(0.0, weighed - selected)) + python_around(groups=1)
    return Extra(plan.kept, {kind: used + python_around(sites=1) for kind, used in around.items()}, planning)


def python_around(sites: int = 0, groups: int = 0) -> Trace:
    """What the Python around so many wrapped calls takes, and that of so many groups before a call of the model."""
    return _python(_AROUND * sites + _BEFORE * groups)


def _python(launches: int) -> Trace:
    """Launches of nothing, which stand for the Python around."""
    return Trace(Counter({Op("stream", torch.float32, 0, 0): launches}))
