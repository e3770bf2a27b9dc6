"""What plans cost on this machine: making them, and using them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tomadiff.evaluation.inspect.observe import Watched
from tomadiff.evaluation.runs.timer import Times, interleaved

RUNS = 20


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
    with torch.no_grad():
        return interleaved(calls, tokens.device, runs)
