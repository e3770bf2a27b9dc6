"""How much destinations have in common from step to step: what makes it right, or not, to keep them for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Overlap:
    """Destinations of ``T`` steps compared with each other.

    Attributes:
        steps: their numbers.
        shares: ``(T, T)`` what share of the destinations of one step (row) are destinations at another (column).
        chance: the share that random destinations would have in common.
    """

    steps: tuple[int, ...]
    shares: Tensor
    chance: float

    @property
    def by_distance(self) -> list[float]:
        """Mean share of destinations that are destinations ``k`` steps later too, for ``k`` = 0, 1, … ``T − 1``."""
        return [float(self.shares.diagonal(apart).mean()) for apart in range(len(self.steps))]

    def since_first(self, every: int) -> list[float]:
        """For every step: the share in common with the first step of its interval of ``every`` steps."""
        places = range(len(self.steps))
        return [float(self.shares[place, place - place % every]) for place in places]


def overlap(steps: Sequence[int], destinations: Sequence[Tensor], tokens: int) -> Overlap:
    """Compare the destinations of steps, one ``(K,)`` of raster indices each, on a grid of ``tokens`` tokens.

    ``K`` of ``tokens`` chosen at random hold ``K / tokens`` of any others, also if each region chooses equally many.
    """
    chosen = torch.zeros(len(destinations), tokens, dtype=torch.float64)
    for row, own in zip(chosen, destinations, strict=True):
        row[own] = 1
    counts = chosen.sum(1)
    shares = chosen @ chosen.T / counts[:, None]
    return Overlap(tuple(steps), shares, float(counts.mean()) / tokens)
