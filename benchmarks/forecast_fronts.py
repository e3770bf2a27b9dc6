"""Forecasts against what they were measured by, at equal cost: python -m benchmarks.forecast_fronts.

Reads the rows of :mod:`benchmarks.forecasts` and :mod:`benchmarks.fidelity`, and prints tables of Markdown:

- Fixed patterns against ops that added again what they gave last, which are no longer in the package. Each is compared
  with the nearest pattern that costs no more, over the pairs that both have.
- The default rule against the first rules, over the pairs that all have. Between two tolerances, the logarithm of the
  error is interpolated over the cost.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from benchmarks.candidates import RETIRED
from benchmarks.fidelity import RESULTS
from benchmarks.fidelity import path_of as fidelity_rows
from benchmarks.fidelity_report import MODELS
from benchmarks.fidelity_results import Measured, share
from benchmarks.forecasts import SETS
from benchmarks.forecasts import path_of as forecast_rows
from tomadiff.evaluation.runs import rows

SAME_COST = 0.01  # decoding and text encoders cost about so much, which shares of steps leave out
CORRECTED = "correct=True"  # in names of patterns; others were generated before computed outputs made up for forecasts
OURS, FIRST = "default", ("trial", "trial, short memory")


def measured(read: Sequence[rows.Row], steps: int, name: str) -> dict[str, Measured]:
    """What was generated with so many steps, by the column ``name``."""
    found: dict[str, dict[tuple[str, str], rows.Row]] = {}
    for row in read:
        if int(row["steps"]) == steps:
            found.setdefault(row[name], {})[row["prompt"], row["seed"]] = row
    return {one: Measured(one, _cost(images), images) for one, images in found.items()}


def _cost(images: Mapping[tuple[str, str], rows.Row]) -> float:
    return fmean(float(image["cost"]) for image in images.values())


# ---------------------------------------------------------------------------------------------- patterns and reuse
def patterns(folder: Path) -> Iterator[str]:
    """One line for each way to reuse."""
    yield "| model, steps | reuse of ops | PSNR | nearest pattern at no more cost | PSNR | MSE, of reuse's | pairs |"
    yield "|---|---|---:|---|---:|---:|---:|"
    for model in MODELS:
        for steps in (4, 8, 20):
            old = measured(rows.read(fidelity_rows(folder, model)), steps, "candidate")
            new = measured(rows.read(forecast_rows(folder, model, shown=True)), steps, "rule")
            ours = [one for name, one in new.items() if CORRECTED in name]
            for reuse in (old[name] for name in RETIRED if name in old):
                yield from _line(f"{model}, {steps}", reuse, ours)


def _line(where: str, reuse: Measured, ours: Sequence[Measured]) -> Iterator[str]:
    found = [(ratio, one) for one in ours if one.cost <= reuse.cost + SAME_COST and (ratio := one.over(reuse, "mse"))]
    if not found:
        return
    ratio, one = min(found, key=lambda pair: pair[0].value)
    common = [key for key in one.images if key in reuse.images]
    psnrs = (f"{fmean(float(side.images[key]['psnr']) for key in common):.1f}" for side in (reuse, one))
    (theirs, own), span = psnrs, f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    label = f"`{short(one.name)}` ({share(one.cost)})"
    yield f"| {where} | {reuse.label} | {theirs} | {label} | {own} | {span} | {ratio.count} |"


def short(rule: str) -> str:
    """Without what says nothing: ``Forecast(every=2, start=0.2)``."""
    inside = rule.removeprefix("Forecast(tolerance=0.05, ").removesuffix(")").replace(f", {CORRECTED}", "")
    inside = inside.replace(", steps=None", "")
    return f"Forecast({inside.replace('every=None, start=0.2, ', '')})"


# ---------------------------------------------------------------------------------------------- rules
def rules(folder: Path) -> Iterator[str]:
    """One line for each tolerance of the first rules."""
    yield "| model | first rule | cost | mean MSE | median | default there: mean MSE | median | pairs |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for model in MODELS:
        every = measured(rows.read(forecast_rows(folder, model, shown=False)), 20, "rule")
        for name in FIRST:
            names = {which: [repr(rule) for rule in SETS[which]] for which in (OURS, name)}
            if not all(one in every for one in (*names[OURS], *names[name])):
                continue
            common = set.intersection(*(set(every[one].images) for which in names.values() for one in which))
            ours, theirs = ([_over(every[one], common) for one in names[which]] for which in (OURS, name))
            for cost, *errors in sorted(theirs):
                (mean, middle), (own_mean, own_middle) = errors, _at(sorted(ours), cost)
                cells = f"{mean:.2f} | {middle:.2f} | {own_mean} | {own_middle}"
                yield f"| {model} | {name} | {share(cost)} | {cells} | {len(common)} |"


def _over(one: Measured, pairs: set[tuple[str, str]]) -> tuple[float, float, float]:
    """Cost, mean and median error."""
    errors = [float(one.images[pair]["mse"]) for pair in pairs]
    return fmean(float(one.images[pair]["cost"]) for pair in pairs), fmean(errors), median(errors)


def _at(points: Sequence[tuple[float, ...]], cost: float) -> list[str]:
    """Errors at a cost between two points; where there are none on one side, the nearest point and its cost."""
    for left, right in pairwise(points):
        if left[0] <= cost <= right[0]:
            part = (cost - left[0]) / (right[0] - left[0])
            logs = zip(map(math.log, left[1:]), map(math.log, right[1:]), strict=True)
            return [f"{math.exp((1 - part) * low + part * high):.2f}" for low, high in logs]
    nearest = min(points, key=lambda point: abs(point[0] - cost))
    return [f"{error:.2f} at {share(nearest[0])}" for error in nearest[1:]]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args(given).results
    print("\n".join([*patterns(folder), "", *rules(folder)]))


if __name__ == "__main__":
    main()
