"""Find settings for a model: within a budget of FLOPs, the ones whose images stay nearest to the unmerged ones.

Costs are counted first, for one call of each kind, so nothing is generated that the budget rules out. What is left is
tried on few images, and its better half on more, until one is left or the images are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import torch
from PIL import Image

from tomadiff.engine.discover import for_family
from tomadiff.errors import SettingError, TomaError
from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart
from tomadiff.evaluation.runs.dry_run import DryRun, dry_run
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.generate import Call
from tomadiff.evaluation.runs.journal import Journal
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.tune.trials import Pair, Trials
from tomadiff.families.base import Family
from tomadiff.families.registry import family_of
from tomadiff.methods.toma import ToMA
from tomadiff.presets import Preset
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.reading import MEASURED

RATIOS = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
STARTS = (0.0, 0.05, 0.2, 0.4)
BESIDE_FORECASTS = (0.0, 0.25, 0.5)  # ratios
TOLERANCES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5)  # of forecasts
SLACK = 0.12  # of the budget: settings that spend much less than they may are not worth an image


@dataclass(frozen=True)
class Finding:
    """A candidate that was tried.

    Attributes:
        candidate: the settings.
        cost: FLOPs, as a share of the unmerged model's.
        error: mean squared error of pixels from 0 to 255, over the images it was tried on.
        images: how many those were.
    """

    candidate: Variant
    cost: float
    error: float
    images: int

    @property
    def psnr(self) -> float:
        """The error in dB."""
        return float(10 * torch.log10(255**2 / torch.tensor(max(self.error, 1e-9))))


def settings(steps: int, levels: int = 1, family: Family | None = None) -> list[Variant]:
    """Everything the search may choose from, for images of so many steps; of what comes to the same, the first.

    ``levels`` are those of the model that have attention; its ``family`` says what settings that are left open become.
    """
    distinct: dict[tuple[Any, ...], Variant] = {}
    for ratio, start in product(RATIOS, STARTS):
        for name, method, schedule in ways(ratio, levels):
            one = Variant.of(f"{name}, from {start:.0%}", method, replace(schedule, start=start))
            settled = method if family is None else for_family(method, family)
            distinct.setdefault((settled, schedule.ratio_at_level, tuple(one.schedule.dues(steps))), one)
    return [*distinct.values(), *forecasting(steps)]


def forecasting(steps: int) -> Iterator[Variant]:
    """Steps that are forecast, by tolerance and in fixed patterns: alone, and on top of merging."""
    patterns = dict[tuple[bool, ...], Forecast]()  # of what comes to the same, the first
    for every, start in product((2, 3, 4), (0.2, 0.3)):
        forecast = Forecast(every=every, start=start)
        patterns.setdefault(tuple(forecast.computes(step, steps) for step in range(steps)), forecast)
    found = [forecast for computed, forecast in patterns.items() if not all(computed)]
    found += [forecast for forecast in map(Forecast, TOLERANCES) if forecast.least(steps) < 1]
    for ratio, forecast in product(BESIDE_FORECASTS, found):
        how = f"every {forecast.every} from {forecast.start:.0%}" if forecast.is_fixed else str(forecast.tolerance)
        yield replace(Variant.of(f"forecast, {how},", ToMA(ratio), Schedule(1, 1)), forecast=forecast)


def ways(ratio: float, levels: int = 1) -> Iterator[tuple[str, ToMA, Schedule]]:
    """How to merge, and when to plan anew: the default, and settings that suit some models better."""
    default, every_step = ToMA(ratio), Schedule(1, 1)
    yield "default", default, every_step
    yield "plans kept 2 steps", default, Schedule(2, 2)
    yield "shared quota", replace(default, quota="shared"), every_step
    yield "random destinations", replace(default, selector="random"), every_step
    if levels > 1:  # detail lives on the finest grid
        less, more = ratio / 2, (1 + ratio) / 2
        coarse = dict.fromkeys(range(1, levels), more)
        yield "coarse levels more", default, Schedule(1, 1, ratio_at_level={0: less, **coarse})


def levels_of(model: Any) -> int:
    """How many grids the attention of a model sees."""
    return len({stack.depth for stack in family_of(model).stacks(model) if stack.blocks})


def affordable(counted: DryRun, budget: float) -> list[tuple[Variant, float]]:
    """Settings that spend the budget and no more, with their cost.

    How many steps a tolerance computes is known only from images. Such settings are here if they may fit, with the cost
    of all steps.
    """
    if not 0 < budget < 1:
        raise SettingError(f"flops={budget!r} is not possible; give the share of FLOPs to keep, such as 0.6.")
    full = counted.flops(Variant())
    offered = settings(counted.steps, levels_of(counted.model), family_of(counted.model))
    costs = [(one, counted.flops(one) / full) for one in offered]
    fitting = [(one, cost) for one, cost in costs if _may_fit(one, cost, budget, counted.steps)]
    if not fitting:
        lowest = min(cost for _, cost in costs)
        raise SettingError(
            f"No setting keeps {budget:.0%} of the FLOPs of this model; the least that merging can reach is "
            f"{lowest:.0%}. Give a larger share."
        )
    return fitting


def _may_fit(one: Variant, cost: float, budget: float, steps: int) -> bool:
    least = 1.0 if one.forecast is None or one.forecast.is_fixed else one.forecast.least(steps)
    return budget - SLACK <= cost and least * cost <= budget


def search(
    pipe: Any,
    call: Call,
    pairs: Sequence[Pair],
    budget: float,
    advance: Callable[[str], None] = lambda _: None,
    journal: Journal | None = None,
) -> list[Finding]:
    """The settings that were tried within ``budget``, best first; see the head of this file for how.

    What the ``journal`` holds is not tried again; a setting on so many images is one row of it.
    """
    journal = journal or Journal()
    counted = dry_run(pipe, *pairs[0], call)
    field = affordable(counted, budget)
    trials, found, failures = Trials(pipe, call), dict[str, Finding](), Failures()
    images = 2
    while True:
        seen = pairs[: min(images, len(pairs))]
        for candidate, cost in field:
            advance(f"{candidate.name} on {len(seen)} images")
            asked = {
                "settings": repr((candidate.method, candidate.schedule, candidate.forecast)),
                "call": repr(call),
                "pairs": repr(list(seen)),
            }
            found.pop(candidate.name, None)  # one that fails now is out, whatever it was before
            with failures.of(candidate.name):
                kinds = {"error": MEASURED, "computed": MEASURED}
                row = journal.row(asked, kinds, partial(_figures, trials, seen, candidate))
                fixed = candidate.forecast is None or candidate.forecast.is_fixed
                spent = cost if fixed else cost * row["computed"]
                if budget - SLACK <= spent <= budget:
                    found[candidate.name] = Finding(candidate, spent, row["error"], len(seen))
        field = [one for one in field if one[0].name in found]
        if not field:
            why = f"; the last: {failures.lines[-1]}" if failures.lines else " within the budget; give a larger share."
            raise TomaError(f"No setting could be tried{why}")
        if len(field) == 1 or len(seen) == len(pairs):
            return sorted(found.values(), key=lambda one: (-one.images, one.error))
        field.sort(key=lambda one: found[one[0].name].error)
        field, images = field[: max(1, len(field) // 3)], 2 * images


def _figures(trials: Trials, seen: Sequence[Pair], candidate: Variant) -> dict[str, float]:
    figures = trials.compare(seen, candidate)
    error, computed = (fmean(one[name] for one in figures) for name in ("mse", "computed"))
    return {"error": error, "computed": computed}


def preset_of(best: Finding, model: str, budget: float, steps: int) -> Preset:
    """What the search found, to keep."""
    why = (
        f"Found by `tomadiff tune` within {budget:.0%} of the FLOPs: {best.cost:.1%} of them at "
        f"{best.psnr:.1f} dB against the unmerged model, over {best.images} images of {steps} steps."
    )
    found = best.candidate
    assert found.method is not None
    return Preset(found.method, found.schedule, made_for=model, why=why, forecast=found.forecast)


# ---------------------------------------------------------------------------------------------- chart
def front(found: Sequence[Finding]) -> list[Finding]:
    """By rising cost, those that are nearer than all that cost no more."""
    kept: list[Finding] = []
    for one in sorted(found, key=lambda one: (one.cost, one.error)):
        if not kept or one.error < kept[-1].error:
            kept.append(one)
    return kept


def chart(found: Sequence[Finding], model: str) -> Image.Image:
    """FLOPs against distance: what each way to merge reached, dashed, and the front of all."""
    lines = [
        _line(name, front([one for one in found if _way(one) == name]), COLOURS[place % len(COLOURS)], dashed=True)
        for place, name in enumerate(dict.fromkeys(map(_way, found)), start=1)
    ]
    lines.append(_line("front of all", front(found), COLOURS[0]))
    note = "PSNR against the full images, dB: higher is nearer; settings that looked bad saw fewer images"
    return line_chart(f"{model}, tuned", note, "FLOPs left, %", lines, (860, 560), percent=False)


def _way(one: Finding) -> str:
    return one.candidate.name.partition(",")[0]


def _line(name: str, found: Sequence[Finding], colour: tuple[int, int, int], dashed: bool = False) -> Line:
    points = tuple((100 * one.cost, one.psnr) for one in found)
    return Line(name, points, colour, dashed=dashed, dots=frozenset(x for x, _ in points))
