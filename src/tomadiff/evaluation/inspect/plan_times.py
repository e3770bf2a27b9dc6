"""What plans cost on this machine: making them, and using them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tomadiff.evaluation.inspect.observe import Watched
from tomadiff.evaluation.runs.timer import now

RUNS = 20


@dataclass(frozen=True)
class Times:
    """Milliseconds of several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.runs)

    @property
    def least(self) -> float:
        """The best one."""
        return min(self.runs)


def plan_times(watched: Watched, runs: int = RUNS) -> dict[str, Times]:
    """What the plan of a group takes, on the tokens of the last step.

    ``select`` makes a whole plan, destinations and weights; ``weigh`` renews the weights alone; ``merge`` and
    ``unmerge`` are paid at every site and every step.
    """
    tokens, plan = watched.tokens, watched.plan
    merged = plan.merge(tokens)
    calls: dict[str, Callable[[], object]] = {
        "select": watched.new_plan,
        "weigh": watched.new_weights,
        "merge": lambda: plan.merge(tokens),
        "unmerge": lambda: plan.unmerge(merged),
    }
    return timed(calls, tokens.device, runs)


def timed(calls: Mapping[str, Callable[[], object]], device: torch.device, runs: int = RUNS) -> dict[str, Times]:
    """Time ``calls`` in turn, so that a machine that slows down slows all of them; the first round does not count."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for turn in range(runs + 1):
            for name, call in calls.items():
                start = now(device)
                call()
                if turn:
                    taken[name].append((now(device) - start) * 1000)
    return {name: Times(tuple(own)) for name, own in taken.items()}
