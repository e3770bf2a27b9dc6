"""The break-even guard: tokens stay unmerged where merging would take longer than it saves.

Every wrapped call is estimated twice, with and without merging, from its shapes and the constants of a named machine
(:mod:`tomadiff.cost`). No clock is read, so the same kind of device with the same number of threads decides alike,
however busy it is. It is decided once for each size of picture and kept, so nothing flips between the steps of one, and
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
from tomadiff.engine.sites import Site
from tomadiff.engine.slots import Slot
from tomadiff.families.base import Family
from tomadiff.merging.plan import Plan

DEFAULT = True
"""Whether patches are guarded unless told otherwise."""

SLACK = 0.05  # share of its time that a call may lose by the estimate, which is not exact; all of a slot may lose none
_AROUND = 14  # launches that the Python around a wrapped call takes the time of; measured on small models
_BEFORE = 30  # the same for what is done once per slot, before a call of the model and at its first site


@dataclass(frozen=True)
class Scale:
    """The size of a call of the model.

    Attributes:
        batch: samples.
        text: text tokens that take part in attention.
        dtype: of hidden states.
        device: where.
        arranged: whether tokens come in the order that plans like best.
        threads: that torch computes with.
    """

    batch: int
    text: int
    dtype: torch.dtype
    device: torch.device
    arranged: bool
    threads: int = 1

    @classmethod
    def of(cls, image: Tensor, text: Any, dtype: torch.dtype, arranged: bool) -> Scale | None:
        """Of a call with these tensors; ``None`` where nothing is computed: on the meta device, with fake tensors."""
        if image.is_meta or isinstance(image, FakeTensor):
            return None
        tokens = text.shape[1] if isinstance(text, Tensor) and text.dim() == 3 else 0
        return cls(image.shape[0], tokens, dtype, image.device, arranged, torch.get_num_threads())

    @property
    def machine(self) -> Hardware:
        """What the call is expected to run on."""
        return Hardware.of(self.device, self.dtype, self.threads)


@dataclass(frozen=True)
class Verdict:
    """What the guard expects of one slot at one size.

    Attributes:
        pays: for each of the slot's sites, whether it shall merge.
        unmerged: seconds of all of them per call, unmerged.
        merged: the same where they merge if it pays, with planning.
        machine: what they run on, and where its constants are from.
    """

    pays: tuple[bool, ...]
    unmerged: float
    merged: float
    machine: str = ""

    @property
    def admits(self) -> bool:
        """Whether the slot shall merge at all; what shows nothing to judge by may."""
        return self.unmerged == 0 or self.merged < self.unmerged

    @property
    def speedup(self) -> float | None:
        """What is expected; ``None`` where nothing showed anything to judge by."""
        return self.unmerged / self.merged if self.merged else None

    @property
    def left_out(self) -> int:
        """Sites that stay unmerged."""
        return len(self.pays) - sum(self.pays) if self.admits else len(self.pays)


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
        verdicts: the one in force for each slot, by name.
    """

    family: Family
    sites: list[tuple[nn.Module, Site]]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _known: dict[Any, Verdict] = field(default_factory=dict, repr=False)
    _extras: dict[Any, Extra] = field(default_factory=dict, repr=False)

    def admits(self, slot: Slot, scale: Scale) -> bool:
        """Whether ``slot`` merges in a call of this size; tells its sites whether they do."""
        ratio = slot.planner.ratio()
        key = (slot.name, slot.planner.grid, slot.tail, ratio, scale)
        if key not in self._known:
            self._known[key] = self._judged(slot, ratio, scale)
        verdict = self._known[key]
        if self.verdicts.get(slot.name) is not verdict:
            self.verdicts[slot.name] = verdict
            for (_, site), pays in zip(self._sites_of(slot), verdict.pays, strict=True):
                site.pays = pays
        return verdict.admits

    def describe(self) -> str:
        """What is decided, what is expected of it, and for which machine; empty before the first call."""
        verdicts = list(self.verdicts.values())
        if not verdicts:
            return ""
        sites, left_out = sum(len(one.pays) for one in verdicts), sum(one.left_out for one in verdicts)
        unmerged = sum(one.unmerged for one in verdicts)
        merged = sum(one.merged if one.admits else one.unmerged for one in verdicts)
        expected = f"; together they are expected to be {unmerged / merged:.2f} times as fast" if merged else ""
        return f"{sites - left_out} of {sites} sites merge{expected} on {verdicts[-1].machine}"

    def _sites_of(self, slot: Slot) -> list[tuple[nn.Module, Site]]:
        return [(module, site) for module, site in self.sites if site.slot is slot]

    # ------------------------------------------------------------------------------------------ the estimate
    def _judged(self, slot: Slot, ratio: float, scale: Scale) -> Verdict:
        machine = scale.machine
        pays, unmerged, merged, planning = [], 0.0, 0.0, 0.0
        for module, site in self._sites_of(slot):
            work = self._work(module, site)
            if work is None:  # it only plans, or shows nothing to judge by
                pays.append(True)
                continue
            extra = self._extra(slot, ratio, scale, work.width)
            before, after = _both(work, site, scale, extra, machine)
            pays.append(after < (1 + SLACK) * before)
            unmerged, merged = unmerged + before, merged + (after if pays[-1] else before)
            planning = max(planning, machine.seconds(extra.planning))
        return Verdict(tuple(pays), unmerged, merged + planning, str(machine))

    def _work(self, module: nn.Module, site: Site) -> Work | None:
        if site.kind == "plan":
            return None
        described = self.family.block(module)
        if described is None:
            return work_of(site.kind, module, joint=site.joint)
        inside = [(op.kind, getattr(module, op.path, None)) for op in described.ops]
        joint = any(op.joint for op in described.ops + described.pooled)
        return work_of(site.kind, module, [(kind, op) for kind, op in inside if isinstance(op, nn.Module)], joint)

    def _extra(self, slot: Slot, ratio: float, scale: Scale, width: int) -> Extra:
        """Plans of equal settings cost alike, except that some methods treat early and late blocks differently."""
        late = round(slot.planner.depth)
        key = (slot.planner.grid, ratio, scale, width, late)
        if key not in self._extras:
            self._extras[key] = _extra(slot, ratio, scale, width, float(late))
        return self._extras[key]


def _both(work: Work, site: Site, scale: Scale, extra: Extra, machine: Hardware) -> tuple[float, float]:
    """Seconds of one call of ``site`` without and with merging."""
    grid, tail = site.slot.planner.grid, site.slot.tail
    assert grid is not None
    size = scale.batch, grid.tokens + tail, scale.text, scale.dtype
    around = extra.around.get(site.kind, extra.around["op"])
    return machine.seconds(work.trace(*size)), machine.seconds(work.trace(*size, extra.kept + tail) + around)


def _extra(slot: Slot, ratio: float, scale: Scale, width: int, depth: float) -> Extra:
    """Make and use a plan on the meta device, and see what it would take."""
    with kernels.assumed(kernels.fused("auto", scale.device, scale.dtype, 1)):
        return _traced(slot, ratio, scale, width, depth)


def _traced(slot: Slot, ratio: float, scale: Scale, width: int, depth: float) -> Extra:
    method, schedule, grid = slot.planner.method, slot.planner.schedule, slot.planner.grid
    assert grid is not None
    tokens = torch.empty(scale.batch, grid.tokens, width, dtype=scale.dtype, device="meta")
    plans: list[Plan] = []
    selecting = trace(lambda: plans.append(method.plan(tokens, grid, ratio=ratio, depth=depth)), warm=True)
    reweighing = trace(lambda: method.reweigh(plans[0], tokens), warm=True)
    plan = plans[0].arranged() if scale.arranged else plans[0]
    merged = plan.merge(tokens)
    around = {
        "op": trace(lambda: plan.unmerge(plan.merge(tokens)), warm=True),
        "block": trace(lambda: plan.unmerge_add(plan.merge(tokens) - merged, tokens), warm=True),
        "pooled": trace(lambda: plan.merge(tokens), warm=True),
    }
    selected, weighed = (1 / interval for interval in schedule.intervals)
    planning = selecting.scaled(selected) + reweighing.scaled(max(0.0, weighed - selected)) + python_around(slots=1)
    return Extra(plan.kept, {kind: used + python_around(sites=1) for kind, used in around.items()}, planning)


def python_around(sites: int = 0, slots: int = 0) -> Trace:
    """What the Python around so many wrapped calls takes, and that of so many slots before a call of the model."""
    return _python(_AROUND * sites + _BEFORE * slots)


def _python(launches: int) -> Trace:
    """Launches of nothing, which stand for the Python around."""
    return Trace(Counter({Op("stream", torch.float32, 0, 0): launches}))
