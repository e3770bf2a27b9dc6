"""Which steps to compute if their number is fixed: a pattern that follows from the number of steps alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tomadiff.steps.history import growth
from tomadiff.steps.times import evened

WARM_UP, MOST_WARM_UP = 0.4, 4  # of the run, and steps: how many are computed first
_ROW = 2.5  # forecast steps that each computed one after the warm-up has to make up for; more shortens the warm-up
_HALVINGS = 40


def spread(count: int, total: int, warm_up: int | None = None, times: Sequence[float] | None = None) -> tuple[int, ...]:
    """``count`` of ``total`` steps to compute: the first ones, the last one, and others where errors add up alike.

    The error of a forecast is taken to grow with its distance in time as in :mod:`tomadiff.steps.forecast`, and sums
    up until the next computed step. The largest of these sums is made as small as possible.

    Args:
        count: steps to compute, at least one.
        total: steps of the run.
        warm_up: steps computed first; fewer where that would leave too few for the rest.
        times: of the steps, along which outputs move evenly; without, those of noise levels that fall evenly.
    """
    if count >= total or count == 1:
        return tuple(range(count if count == 1 else total))
    warm_up = min(round(WARM_UP * total), MOST_WARM_UP) if warm_up is None else warm_up
    times = evened([1 - step / (total - 1) for step in range(total)]) if times is None else times
    first = range(max(1, min(warm_up, count - int((total - count) / _ROW), count - 1)))
    low, high = 0.0, _sum(times, 0, total - 1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_within(middle, times, first)) <= count else (middle, high)
    found = set(_within(high, times, first))
    while len(found) < count:  # what is left goes where the sum is largest
        start, end = max(pairwise(sorted(found)), key=lambda gap: _sum(times, *gap))
        found.add((start + end + 1) // 2)
    return tuple(sorted(found))


def _within(bound: float, times: Sequence[float], first: Sequence[int]) -> list[int]:
    """Steps such that no sum of errors between two is above the bound, each as late as it can be; the last one too."""
    found, error = list(first), 0.0
    for step in range(len(first), len(times) - 1):
        error += growth(times[step] - times[found[-1]])
        if error > bound:
            found.append(step)
            error = 0.0
    return [*found, len(times) - 1]


def _sum(times: Sequence[float], start: int, end: int) -> float:
    """Errors of the steps between two computed ones."""
    return sum(growth(times[step] - times[start]) for step in range(start + 1, end))
