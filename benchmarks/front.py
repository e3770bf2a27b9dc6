"""Every way to save FLOPs as a curve of error by cost, and what is nearest at equal cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import torch

from benchmarks.fidelity_results import Measured, Results

COSTS = (0.85, 0.75, 0.65, 0.55, 0.5, 0.45, 0.35, 0.3)
OURS = (
    "forecast by tolerance",
    "forecast in a pattern",
    "forecast in a pattern + merging",
    "forecast by tolerance + merging",
)
MERGERS = ("ToMA", "ToMA as in the paper", "ToMeSD, all ops", "ToFu, all ops", "ToMeSD", "ToFu")
CURVES = {  # title: names of its settings
    "forecast by tolerance": r"forecast [\d.]+",
    "forecast in a pattern": r"forecast \d+ of \d+",
    "forecast by tolerance + merging": r"forecast [\d.]+ \+ toma .*",
    "forecast in a pattern + merging": r"forecast \d+ of \d+ \+ toma .*",
    "skipping, last output again": r"repeat .*",
    "reuse of ops": r"reuse .*",
    "DeepCache": r"DeepCache .*",
    "FirstBlockCache": r"FirstBlockCache .*",
    "TaylorSeer": r"TaylorSeer every .*",
    "TaylorSeer, every attention": r"TaylorSeer full .*",
    "MagCache": r"MagCache .*",
    "SeaCache": r"SeaCache .*",
    "DBCache (cache-dit)": r"DBCache \d.*",
    "DBCache + TaylorSeer (cache-dit)": r"DBCache TaylorSeer .*",
    "Pyramid Attention Broadcast": r"PAB .*",
    "ToMA": r"toma [\d./]+",
    "ToMA as in the paper": r"toma-paper [\d.]+",
    "ToMeSD, all ops": r"tomesd-all .*",
    "ToFu, all ops": r"tofu-all .*",
    "ToMeSD": r"tomesd [\d.]+",
    "ToFu": r"tofu [\d.]+",
}
LEAST = 8  # pairs; fewer say nothing
_LEAST_ERROR = 1e-3  # of images that are the same
CACHES = tuple(title for title in CURVES if title not in (*OURS, *MERGERS))


@dataclass(frozen=True)
class Point:
    """One setting of a curve.

    Attributes:
        name: of the setting.
        cost: FLOPs as a share, the mean over its images.
        mse: mean over its images.
        pairs: how many.
    """

    name: str
    cost: float
    mse: float
    pairs: int


def percentile(one: Measured, measure: str, share: float) -> float:
    """Over all images; 0.05 is exceeded by 19 of 20."""
    values = torch.tensor([float(row[measure]) for row in one.images.values()], dtype=torch.float64)
    return float(values.quantile(share))


Pairs = frozenset[tuple[str, str]]


def settings(results: Results, title: str) -> list[Measured]:
    """All settings of a curve with enough images."""
    named = re.compile(CURVES[title])
    return [one for one in results.measured.values() if named.fullmatch(one.name) and len(one.images) >= LEAST]


def common(results: Results, titles: Sequence[str]) -> Pairs:
    """Pairs of prompt and seed that every setting of some curves has."""
    found = [frozenset(one.images) for title in titles for one in settings(results, title)]
    return frozenset.intersection(*found) if found else frozenset()


def curve(results: Results, title: str, pairs: Pairs) -> list[Point]:
    """Settings by rising cost that are nearer than all cheaper ones, over these pairs."""
    points = []
    for one in settings(results, title):
        rows = [one.images[pair] for pair in pairs if pair in one.images]
        if len(rows) >= LEAST:
            cost, mse = (fmean(float(row[name]) for row in rows) for name in ("cost", "mse"))
            points.append(Point(one.name, cost, mse, len(rows)))
    return list(_front(sorted(points, key=lambda point: (point.cost, point.mse))))


def _front(points: Sequence[Point]) -> Iterator[Point]:
    best = math.inf
    for point in points:
        if point.mse < best:
            best = point.mse
            yield point


def error_at(points: Sequence[Point], cost: float) -> float | None:
    """Mean squared error at a cost: between two settings along the line of its logarithm; ``None`` outside."""
    for low, high in pairwise(points):
        if low.cost <= cost <= high.cost:
            part = (cost - low.cost) / max(high.cost - low.cost, 1e-9)
            logs = [math.log(max(one.mse, _LEAST_ERROR)) for one in (low, high)]
            return math.exp((1 - part) * logs[0] + part * logs[1])
    return None


@dataclass(frozen=True)
class Ratio:
    """The error of one curve as a share of another's, at equal cost over the same pairs."""

    own: str
    rival: str
    cost: float
    value: float
    pairs: int


def ratios(results: Results, own: str, rivals: Sequence[str], cost: float) -> list[Ratio]:
    """One curve against others, where both reach a cost; the nearest rival first."""
    found = []
    for rival in rivals:
        pairs = common(results, (own, rival))
        if len(pairs) < LEAST:
            continue
        errors = [error_at(curve(results, title, pairs), cost) for title in (own, rival)]
        if errors[0] is not None and errors[1] is not None:
            found.append(Ratio(own, rival, cost, errors[0] / errors[1], len(pairs)))
    return sorted(found, key=lambda ratio: -ratio.value)


def decibels(mse: float) -> float:
    """The PSNR of a mean squared error."""
    return 10 * math.log10(255**2 / max(mse, 1e-9))
