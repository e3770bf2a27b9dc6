"""What a patch did, as data and as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tomadiff.engine.group import PlanGroup
from tomadiff.engine.site import Site
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Method
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.run import Pattern
from tomadiff.steps.schedule import Schedule

if TYPE_CHECKING:
    from tomadiff.engine.model import PatchedModel

NO_GAIN = "merging would not be faster here (guard=False merges all the same)"


@dataclass(frozen=True)
class LevelReport:
    """One group of a patch: a block with plans of its own, or all blocks that share one.

    ``tokens_before`` and the like are ``None`` until the model has run. ``left_out`` counts sites that the guard keeps
    unmerged, ``expected`` is the speed-up it expects of all sites together where the others merge.
    """

    name: str
    level: int
    grid: str | None
    tokens_before: int | None
    tokens_after: int | None
    realised_ratio: float
    sites: int
    plans_made: int
    weights_made: int
    coverage: float | None
    bytes_held: int
    bypassed: Mapping[str, int]
    left_out: int = 0
    expected: float | None = None

    @classmethod
    def of(
        cls, group: PlanGroup, sites: Sequence[Site], left_out: int = 0, expected: float | None = None
    ) -> LevelReport:
        """Of a group and its sites, as they are now."""
        plan = group.last
        return cls(
            name=group.name,
            level=group.level,
            grid=None if group.grid is None else str(group.grid),
            tokens_before=None if plan is None else plan.tokens,
            tokens_after=None if plan is None else plan.kept,
            realised_ratio=0.0 if plan is None else plan.realised_ratio,
            sites=len(sites),
            plans_made=group.plans_made,
            weights_made=group.weights_made,
            coverage=None if plan is None else _mean_coverage(plan),
            bytes_held=_bytes_held(group),
            bypassed=dict(group.bypassed),
            left_out=left_out,
            expected=expected,
        )

    def row(self) -> tuple[str, ...]:
        """The cells of a table."""
        if self.tokens_before is None:
            return (self.name, "–", "–", "–", str(self.sites), "0", "0", "–", "–")
        return (
            self.name,
            self.grid or "–",
            f"{self.tokens_before} → {self.tokens_after}",
            f"{self.realised_ratio:.1%}",
            str(self.sites),
            str(self.plans_made),
            str(self.weights_made),
            f"{self.coverage:.4f}",
            f"{self.bytes_held / 1024:.0f} KiB",
        )


@dataclass(frozen=True)
class ModelReport:
    """One patched model; ``idle`` says why nothing is merged, if nothing is, ``budget`` what was chosen to meet one,
    ``guard`` what the guard decided and expects, and for which machine."""

    component: str
    model: str
    family: str
    levels: tuple[LevelReport, ...]
    skipped_blocks: int
    note: str = ""
    idle: str = ""
    budget: str = ""
    guard: str = ""

    @property
    def bypassed(self) -> dict[str, int]:
        """Calls that ran unmerged, by site and reason."""
        return {reason: count for level in self.levels for reason, count in level.bypassed.items()}

    @property
    def merged(self) -> bool:
        """Whether any plan was used."""
        return any(level.tokens_before is not None for level in self.levels)


def describe(patched: PatchedModel) -> ModelReport:
    """What a patched model has merged so far."""
    kind, family, policy = type(patched.model).__name__, patched.family, patched.policy
    levels = tuple(_level(patched, group) for group in patched.groups)
    budget, guard = ("", "") if policy is None else (policy.describe_budget(), policy.describe_guard())
    idle = _why_idle(patched)
    return ModelReport(patched.name, kind, family.title, levels, patched.skipped, family.note, idle, budget, guard)


def _level(patched: PatchedModel, group: PlanGroup) -> LevelReport:
    left_out, expected = (0, None) if patched.policy is None else patched.policy.verdict(group)
    return LevelReport.of(group, [site for _, site in patched.sites if site.group is group], left_out, expected)


def _why_idle(patched: PatchedModel) -> str:
    if merges_nothing(patched.method, patched.schedule):
        return "the ratio is 0"
    if not patched.calls:
        return "the model has not run yet"
    if patched.policy is not None and patched.policy.refuses_all():
        return NO_GAIN
    if any(group.bypassed for group in patched.groups):
        return "every call ran unmerged"
    return "no step so far was one to merge at"


def merges_nothing(method: Method, schedule: Schedule) -> bool:
    """Whether the settings alone leave every token where it is."""
    return method.ratio == 0 and not schedule.varies


@dataclass(frozen=True)
class ForecastReport:
    """One model whose denoising steps are forecast, the pattern of its last image, and what its ControlNet cost.

    ``why`` says why these settings, where they were chosen for the run.
    """

    component: str
    model: str
    settings: Forecast
    pattern: Pattern
    control: str = ""
    why: str = ""

    def lines(self) -> list[str]:
        """As text."""
        lines = [f"{self.component}: {self.model}, {self.settings} (our own, not the paper's)"]
        lines += [f"  {self.why}"] if self.why else []
        if not self.settings.skips:
            return [*lines, "  nothing is forecast: every step is computed"]
        if not self.pattern.computed:
            return [*lines, "  nothing is forecast: the model has not run yet"]
        lines += [f"  {self.pattern}; expected speed-up of the denoiser: at most {1 / self.pattern.share:.2f}×"]
        lines += [f"  computed: {' '.join(map(str, self.pattern.computed))}"]
        return lines + ([f"  {self.control}"] if self.control else [])


@dataclass(frozen=True)
class Report:
    """What a patch did; the texts of method and schedule are empty if nothing was to be merged."""

    method: str
    schedule: str
    models: tuple[ModelReport, ...]
    forecasts: tuple[ForecastReport, ...] = ()

    def __str__(self) -> str:
        models = [text for model in self.models for text in _describe(model)]
        forecasts = [text for one in self.forecasts for text in one.lines()]
        return "\n".join([*models, *forecasts, *(text for text in (self.method, self.schedule) if text)])


_HEAD = ("grid", "tokens", "merged", "sites", "plans", "reweighed", "coverage", "held")


def _describe(model: ModelReport) -> list[str]:
    levels = _gathered(model.levels)
    lines = _table([(model.component, *_HEAD), *(level.row() for level in levels)])
    skipped = f", first {model.skipped_blocks} blocks skipped" if model.skipped_blocks else ""
    lines.append(f"{model.component}: {model.model} ({model.family}){skipped}")
    lines += [f"  budget: {model.budget}"] if model.budget else []
    if not model.merged:
        lines.append(f"  nothing is merged: {model.idle}")
    unknown = "expected speed-up: not estimated, with guard=False" if model.merged else ""
    lines += [f"  {text}" for text in (f"guard: {model.guard}" if model.guard else unknown,) if text]
    lines += [line for level in levels for line in _left_out(level)]
    lines += _unmerged(model.bypassed)
    return lines + ([f"  note: {model.note}"] if model.note else [])


def _gathered(levels: Sequence[LevelReport]) -> list[LevelReport]:
    """Groups of one level and size as one: a large model has dozens of blocks, each with plans of its own."""
    alike: dict[object, list[LevelReport]] = {}
    for one in levels:
        alike.setdefault((one.level, one.grid, one.tokens_before, one.tokens_after), []).append(one)
    return [_together(groups) for groups in alike.values()]


def _together(groups: Sequence[LevelReport]) -> LevelReport:
    if len(groups) == 1:
        return groups[0]
    coverage = [one.coverage for one in groups if one.coverage is not None]
    return replace(
        groups[0],
        name=f"level {groups[0].level}, {len(groups)} groups",
        sites=sum(one.sites for one in groups),
        plans_made=sum(one.plans_made for one in groups),
        weights_made=sum(one.weights_made for one in groups),
        coverage=sum(coverage) / len(coverage) if coverage else None,
        bytes_held=sum(one.bytes_held for one in groups),
        left_out=sum(one.left_out for one in groups),
    )


def _left_out(level: LevelReport) -> list[str]:
    if not level.left_out:
        return []
    which = "all" if level.left_out == level.sites else f"{level.left_out} of {level.sites}"
    return [f"  guard: {which} sites of {level.name} stay unmerged, merging would not be faster there"]


def _unmerged(bypassed: Mapping[str, int]) -> list[str]:
    """One line per reason: a large model has hundreds of sites."""
    counts: dict[str, list[int]] = {}
    for key, count in bypassed.items():
        counts.setdefault(key.split(": ", 1)[-1], []).append(count)
    return [f"  unmerged: {sum(own)} calls at {len(own)} sites: {reason}" for reason, own in counts.items()]


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in aligned]


def _mean_coverage(plan: Plan) -> float:
    """Not a number on the meta device, where plans have shapes alone."""
    return math.nan if plan.coverage.is_meta else float(plan.coverage.float().mean())


def _bytes_held(group: PlanGroup) -> int:
    """Plans share tensors with each other, so each tensor counts once."""
    plans = [record.plan for record in group.records.values()] + ([group.plan] if group.plan else [])
    tensors = {id(tensor): tensor for plan in plans for tensor in plan.state}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
