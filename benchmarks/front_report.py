"""Tables of forecasts and of everything that skips or caches steps, for :mod:`benchmarks.fidelity_report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.fidelity_results import Measured, Results, share
from benchmarks.front import (
    CACHES,
    COSTS,
    CURVES,
    MERGERS,
    OURS,
    common,
    curve,
    decibels,
    error_at,
    percentile,
    ratios,
    settings,
)

EQUAL = """At equal FLOPs: PSNR of the mean squared error in dB, between two settings of a curve along the line of its
logarithm. A dash means that the curve does not reach that cost. Settings that cost more and are farther are left out.
Curves with different numbers of pairs are over different images."""
AGAINST = """The nearest forecast against others at equal FLOPs, over the pairs that both have. Below 1 it is nearer:"""
STEPS = """Every setting that leaves out steps or reuses what they computed, by cost:"""


def steps(results: Results) -> Iterator[list[str]]:
    """Every setting of the curves over steps."""
    titles = [title for title in CURVES if title not in MERGERS]
    for title in titles:
        for one in sorted(settings(results, title), key=lambda one: -one.cost):
            yield [title, one.name, *_figures(one)]


def _figures(one: Measured) -> list[str]:
    spread = [f"{percentile(one, 'psnr', part):.1f}".replace("inf", "equal") for part in (0.5, 0.05, 0.0)]
    return [share(one.cost), *spread, f"{one.mean('mse').value:.2f}", f"{percentile(one, 'mse', 0.95):.1f}",
            str(len(one.images))]  # fmt: skip


def at_equal_cost(results: Results) -> Iterator[list[str]]:
    """Every curve at round costs."""
    for title in CURVES:
        points = curve(results, title, common(results, (title,)))
        cells = [error_at(points, cost) for cost in COSTS]
        if any(cells):
            yield [title, *("–" if one is None else f"{decibels(one):.1f}" for one in cells), str(points[0].pairs)]


def against(results: Results) -> Iterator[list[str]]:
    """At each cost, the nearest of our curves against the nearest cache and the nearest merger."""
    for cost in COSTS:
        for rivals in (CACHES, MERGERS):
            found = [ratio for own in OURS for ratio in ratios(results, own, rivals, cost)[:1]]
            if found:
                best = min(found, key=lambda ratio: ratio.value)
                yield [f"{cost:g}", best.own, best.rival, f"{best.value:.2f}", str(best.pairs)]


HEADS: dict[str, Sequence[str]] = {
    "steps": ("", "setting", "FLOPs", "PSNR, median", "5 % below", "worst", "MSE", "5 % above", "pairs"),
    "equal": ("", *(f"{cost:g}" for cost in COSTS), "pairs"),
    "against": ("FLOPs", "forecast", "nearest rival", "MSE, of theirs", "pairs"),
}


def tables(results: Results) -> dict[str, tuple[Sequence[str], list[list[str]]]]:
    """What stands under each title: head and lines."""
    return {
        STEPS: (HEADS["steps"], list(steps(results))),
        EQUAL: (HEADS["equal"], list(at_equal_cost(results))),
        AGAINST: (HEADS["against"], list(against(results))),
    }
