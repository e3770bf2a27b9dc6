"""The images of :mod:`benchmarks.fidelity`, read back: means and ratios with intervals, and what must hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.candidates import DEFAULT, FEW_STEPS, LADDERS, RATIOS, RETIRED, SAME_COST, SETS, Bench, known, ladder
from benchmarks.fidelity import PROMISED_PAIRS, path_of
from tomadiff import embedded
from tomadiff.evaluation.metrics.samples import resampled
from tomadiff.evaluation.metrics.statistics import Interval, mean_interval, paired_ratio
from tomadiff.evaluation.runs.rows import Row, read

MEASURES = ("mse", "judge")  # what must hold is said about both
AT_MOST = {"emoji-sdxl": 0.5, "emoji-flux": 0.8}  # of the error of the paper's settings
TELLING_PAIRS = 10  # to tell two settings apart at all
BASELINES = (
    *(f"{name} {ratio:.2f}" for name in ("tomesd", "tofu") for ratio in RATIOS),
    *(f"{name}-all {ratio:.2f}" for name in ("tomesd", "tofu") for ratio in RATIOS),
    "todo 0.75",
)


@dataclass(frozen=True)
class Measured:
    """A candidate and its images, by prompt and seed."""

    name: str
    cost: float
    images: dict[tuple[str, str], Row] = field(repr=False)

    @property
    def label(self) -> str:
        """The name with the share of FLOPs."""
        return f"{self.name} ({share(self.cost)})"

    def mean(self, measure: str) -> Interval:
        """Over all images."""
        prompts = [prompt for prompt, _ in self.images]
        return mean_interval(_column(self.images.values(), measure), resampled(prompts))

    def over(self, other: Measured, measure: str) -> Interval | None:
        """Mean error as a share of another's, over the images that both have; ``None`` if there are none."""
        both = [key for key in self.images if key in other.images]
        values, others = (_column([one.images[key] for key in both], measure) for one in (self, other))
        if not both or not others.any():
            return None
        return paired_ratio(values, others, resampled([prompt for prompt, _ in both]))


def _column(images: Sequence[Row] | Iterator[Row], measure: str) -> torch.Tensor:
    return torch.tensor([float(image[measure]) for image in images], dtype=torch.float64)


def share(cost: float) -> str:
    """ ".746": how shares of FLOPs are written."""
    return f"{cost:.3f}".removeprefix("0")


class Results:
    """What was generated with one model and number of steps; images of settings that changed since are left out."""

    def __init__(self, rows: Sequence[Row], model: str, steps: int) -> None:
        self.model, self.steps, self.outdated = model, steps, 0
        self.measured: dict[str, Measured] = {}
        current = known(model, steps)
        for row in rows:
            if int(row["steps"]) != steps:
                continue
            if current.get(row["candidate"]) != row["settings"]:
                self.outdated += 1
                continue
            own = self.measured.setdefault(row["candidate"], Measured(row["candidate"], float(row["cost"]), {}))
            own.images[row["prompt"], row["seed"]] = row
        for name, own in self.measured.items():  # a forecast costs what the image asks for
            self.measured[name] = replace(own, cost=fmean(float(row["cost"]) for row in own.images.values()))

    @classmethod
    def read(cls, folder: Path, model: str, tuning: bool = False) -> list[Results]:
        """One for every number of steps, the largest first; of the images that settings were chosen by if asked."""
        rows = read(path_of(folder, model, tuning))
        return [cls(rows, model, steps) for steps in sorted({int(row["steps"]) for row in rows}, reverse=True)]

    def get(self, name: str) -> Measured | None:
        """By name; ``None`` if it was not generated."""
        return self.measured.get(name)

    def within(self, budget: float) -> Measured | None:
        """The default at no more than a share of FLOPs, by the rule of :func:`benchmarks.candidates.within`."""
        return next((one for one in self.measured_of("matched") if one.cost <= budget + SAME_COST), None)

    def cheapest(self, names: Sequence[str], cost: float) -> Measured | None:
        """Of these, the one that costs least but no less than ``cost``; of equal ones the nearest."""
        found = [one for one in map(self.get, names) if one and one.cost >= cost - SAME_COST]
        return min(found, key=lambda one: (round(one.cost, 3), one.mean("mse").value), default=None)

    def names_of(self, which: str) -> list[str]:
        """Of all candidates of a set; of those that follow from costs, all that there may be."""
        if which in LADDERS:
            return [one.name for one in ladder(self.model)]
        return [one.name for one in SETS[which](Bench(self.model, self.steps, lambda _: 1.0))]

    def measured_of(self, which: str) -> list[Measured]:
        """Those of a set that were generated, also of caches that are no more."""
        names = [*(RETIRED if which == "caches" else ()), *self.names_of(which)]
        return [one for one in map(self.get, names) if one]


# ---------------------------------------------------------------------------------------------- what must hold
@dataclass(frozen=True)
class Demand:
    """That the default's error is at most a share of a rival's, by every measure, at no more FLOPs.

    Attributes:
        text: what is compared.
        own: the default; ``None`` if it was not generated.
        rival: what it is compared with; ``None`` if it was not generated.
        most: the share.
    """

    text: str
    own: Measured | None
    rival: Measured | None
    most: float

    def ratio(self, measure: str) -> Interval | None:
        """The default's error as a share of the rival's."""
        return None if self.own is None or self.rival is None else self.own.over(self.rival, measure)

    @property
    def verdict(self) -> str:
        """Held only if the whole interval is; missed as soon as the mean is; neither by too few pairs."""
        ratios = [self.ratio(measure) for measure in MEASURES]
        if self.own is None or self.rival is None or None in ratios:
            return "not generated yet"
        found = [ratio for ratio in ratios if ratio is not None]
        if found[0].count < TELLING_PAIRS:
            return f"too few pairs, {found[0].count} so far"
        so_far = f", {found[0].count} pairs so far" if found[0].count < PROMISED_PAIRS else ""
        if self.own.cost > self.rival.cost + SAME_COST or any(not one.value <= self.most for one in found):
            return f"**missed**{so_far}"
        return ("held" if all(one.high <= self.most for one in found) else "held, within the interval") + so_far


def demands(results: Results) -> Iterator[Demand]:
    """All that this number of steps is asked for."""
    for ratio in RATIOS:
        rival = results.get(f"toma-paper {ratio:.2f}")
        own = None if rival is None else results.within(rival.cost)
        yield Demand(f"the paper's cost at {ratio:g}", own, rival, AT_MOST[embedded.base(results.model)])
    for name in BASELINES:
        rival = results.get(name)
        if rival is None and results.steps < FEW_STEPS:
            continue
        yield Demand(f"{name}'s cost", None if rival is None else results.within(rival.cost), rival, 1.0)


def is_alone(name: str) -> bool:
    """Whether a candidate of the caches is a cache without merging."""
    return not name.startswith(f"{DEFAULT} +")


def kind_of_cache(name: str) -> str:
    """ "DeepCache" of "toma + DeepCache every 3 0.50"."""
    return name.removeprefix(f"{DEFAULT} + ").split()[0]


def told(ratio: Interval | None) -> str:
    """What a ratio of errors says."""
    if ratio is None:
        return "–"
    if ratio.count < TELLING_PAIRS:
        return "too few pairs"
    if ratio.low <= 1 <= ratio.high:
        return "no difference told"
    return "better" if ratio.high < 1 else "worse"
