"""Timing methods against each other: interleaved rounds, warm-up, and the spread next to the median.

Every round runs every contender once, so that a machine that slows down slows all of them, and speed-ups compare
times of the same round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tomadiff.cost import Cost, cost_of
from tomadiff.errors import require_count
from tomadiff.evaluate.generate import Variant, drawable, variants
from tomadiff.evaluate.report import title_of
from tomadiff.evaluate.workloads import Workload
from tomadiff.patch import Patch, apply


@dataclass(frozen=True)
class Measurement:
    """What a contender took.

    Attributes:
        unit: what one measurement stands for: a picture, or the mean step of a window.
        seconds: one per round.
        parts: median seconds of each kind of call that makes up the unit.
        speed_up: median over rounds of the baseline's seconds by its own.
        flops, launches, peak_bytes: see :class:`~tomadiff.cost.Cost`.
        plan_bytes: held by plans at the end.
    """

    method: str
    title: str
    ratio: float
    unit: str
    seconds: tuple[float, ...]
    parts: dict[str, float]
    speed_up: float
    flops: float
    launches: float
    peak_bytes: float
    plan_bytes: int

    @property
    def least(self) -> float:
        """The best round."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median

    def as_row(self) -> dict[str, Any]:
        """Plain numbers, for JSON and CSV."""
        own = asdict(self)
        times = {"seconds_min": self.least, "seconds_median": self.median, "seconds_spread": self.spread}
        return own | times | {"rounds": len(self.seconds)}


def contenders(methods: Sequence[str], ratios: Sequence[float], workload: Workload) -> tuple[list[Variant], list[str]]:
    """The baseline and every method at every ratio; and one line for each method that cannot work here."""
    return drawable(workload.target, variants(methods, ratios))


def measure(
    workload: Workload, field: Sequence[Variant], rounds: int = 5, done: Callable[[], None] = lambda: None
) -> list[Measurement]:
    """Count every contender once, then time all of them in interleaved rounds; ``done`` is called after each."""
    require_count("rounds", rounds)
    counted = []
    for contender in field:  # counting runs all of the code, so it is the warm-up round too
        counted.append(_counted(workload, contender))
        done()
    timed: list[list[dict[str, tuple[float, float]]]] = [[] for _ in field]
    for turn in range(rounds):
        for place in _order(len(field), turn):
            timed[place].append(_timed(workload, field[place]))
            done()
    return [
        _measurement(workload, contender, own, timed[0], cost, held)
        for contender, own, (cost, held) in zip(field, timed, counted, strict=True)
    ]


def _order(count: int, turn: int) -> list[int]:
    """Each round starts with another contender: nobody always runs behind the same one."""
    return [(place + turn) % count for place in range(count)]


def _on(workload: Workload, variant: Variant) -> AbstractContextManager[Patch | None]:
    made = variant.made()
    return nullcontext() if made is None else apply(workload.target, made[0], schedule=made[1], guard=False)


def _counted(workload: Workload, contender: Variant) -> tuple[Cost, int]:
    with _on(workload, contender) as patch:
        workload.warm(patch)
        total = Cost(0, 0, 0)
        for part in workload.parts(patch):
            total = total + cost_of(part.call).scaled(part.share)
        return total, _plan_bytes(patch)


def _plan_bytes(patch: Patch | None) -> int:
    models = () if patch is None else patch.report().models
    return sum(level.bytes_held for model in models for level in model.levels)


def _timed(workload: Workload, contender: Variant) -> dict[str, tuple[float, float]]:
    """Share and seconds of every part."""
    with _on(workload, contender) as patch:
        workload.warm(patch)
        return {part.name: (part.share, seconds_of(part.call, workload.device)) for part in workload.parts(patch)}


def seconds_of(call: Callable[[], Any], device: torch.device) -> float:
    """How long ``call`` takes; a GPU works behind the back of the clock, so it is waited for."""
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _whole(parts: dict[str, tuple[float, float]]) -> float:
    return sum(share * seconds for share, seconds in parts.values())


def _measurement(
    workload: Workload,
    contender: Variant,
    own: list[dict[str, tuple[float, float]]],
    base: list[dict[str, tuple[float, float]]],
    cost: Cost,
    held: int,
) -> Measurement:
    seconds = tuple(map(_whole, own))
    return Measurement(
        method=contender.method,
        title=title_of(contender.method),
        ratio=contender.ratio,
        unit=workload.unit,
        seconds=seconds,
        parts={name: statistics.median(part[name][1] for part in own) for name in own[0]},
        speed_up=statistics.median(_whole(before) / after for before, after in zip(base, seconds, strict=True)),
        flops=cost.flops,
        launches=cost.launches,
        peak_bytes=cost.peak_bytes,
        plan_bytes=held,
    )
