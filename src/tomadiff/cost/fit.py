"""Fitting a machine's constants to calls that were timed: what a second of small measurements cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tomadiff.cost.hardware import PARTS, Hardware
from tomadiff.cost.trace import Trace

_PULL = 1e-3  # towards the constants as they were; decides where the calls have nothing to say
_LEAST = 0.05  # no part becomes more than twenty times as fast


def fitted(machine: Hardware, timed: Sequence[tuple[Trace, float]], pull: float = _PULL) -> Hardware:
    """``machine`` with constants that explain calls of known seconds best, by relative error.

    For machines whose parts add up, which those that launch ahead are not.
    """
    rows = [[part / seconds for part in machine.parts(found).values()] for found, seconds in timed]
    shares = torch.tensor(rows, dtype=torch.float64)
    normal = shares.T @ shares / len(rows) + pull * torch.eye(len(PARTS), dtype=torch.float64)
    wanted = shares.mean(0) + pull
    factors = torch.linalg.solve(normal, wanted).clamp_min(_LEAST)
    return machine.slowed(dict(zip(PARTS, factors.tolist(), strict=True)))
