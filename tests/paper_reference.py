"""The paper's method once more, in NumPy and float64: what the library is held against.

Written from the description of the method (arXiv 2509.10918), not from the library, and simple rather than fast:
regions are lists of token numbers, and a plan is one dense matrix over all tokens of the grid. The readings of the
paper that it shares with the library are those of docs/method.md: similarities are ``(cos + 1) / 2``, weights a softmax
of cosines at temperature 1/1000, the guidance passes of an image share destinations (chosen on their mean similarity),
and everything that sees one grid shares one plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

TEMPERATURE = 1e-3
DESTINATIONS_EVERY, WEIGHTS_EVERY = 10, 5  # steps


@dataclass(frozen=True)
class Variant:
    """One of the paper's: where destinations are chosen, where tokens merge, and what merges at once."""

    shape: str  # of selection regions: "tile" or "stripe"
    attention: str = "same"  # regions, or "whole" grid
    span: str = "op"  # or "block"

    def regions(self, height: int, width: int) -> list[Array]:
        """Token numbers of each region: tiles of 4×4 tokens, or runs of 16."""
        raster = np.arange(height * width).reshape(height, width)
        if self.shape == "stripe":
            return np.array_split(raster.ravel(), max(1, round(raster.size / 16)))
        bands = np.array_split(raster, max(1, round(height / 4)), axis=0)
        return [tile.ravel() for band in bands for tile in np.array_split(band, max(1, round(width / 4)), axis=1)]


VARIANTS = {
    "paper": Variant("tile"),
    "stripe": Variant("stripe"),
    "whole": Variant("tile", attention="whole"),
    "once": Variant("tile", span="block"),
}


def cosines(tokens: Array) -> Array:
    """``(B, N, C)`` → ``(B, N, N)``."""
    length = np.sqrt((tokens * tokens).sum(-1, keepdims=True))
    unit = tokens / np.where(length > 0, length, 1)
    return np.clip(unit @ unit.transpose(0, 2, 1), -1, 1)


def gains(similarity: Array, chosen: list[int]) -> Array:
    """``(N,)`` what each token would add to ``f(T) = Σ_i max_{j∈T} S_ij``, with ``S`` ``(N, N)`` and ``T`` chosen."""
    best = similarity[:, chosen].max(1) if chosen else np.zeros(len(similarity))
    gain = np.maximum(similarity - best[:, None], 0).sum(0)
    gain[chosen] = -np.inf
    return gain


def greedy(similarity: Array, count: int) -> list[int]:
    """The paper's algorithm 1: add the best token, ``count`` times; ties go to the lowest number."""
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(int(gains(similarity, chosen).argmax()))
    return chosen


def shortfall(similarity: Array, chosen: list[int]) -> float:
    """By how much the worst of these choices, in their order, gains less than the best one would have."""
    assert len(set(chosen)) == len(chosen)
    by_step = (gains(similarity, chosen[:place]) for place in range(len(chosen)))
    return max(float(gain.max() - gain[pick]) for gain, pick in zip(by_step, chosen, strict=True))


def destination_count(regions: list[Array], ratio: float) -> int:
    """Of every region: one number for all, and no more than the smallest holds."""
    tokens = sum(map(len, regions))
    return max(1, min(round((1 - ratio) * tokens / len(regions)), min(map(len, regions))))


def weights(cosine: Array, destinations: Array, home: Array | None) -> Array:
    """``A`` ``(B, K, N)``: how much of each token (a column) goes to each destination.

    ``home`` ``(N,)`` is the region of each token, in which alone it merges; ``None`` lets it merge anywhere.
    """
    logits = cosine[:, destinations] / TEMPERATURE
    if home is not None:
        logits = np.where(home[destinations][:, None] == home[None, :], logits, -np.inf)
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


class Merger:
    """The plan of one grid over a run: made, kept and renewed as the paper does, used by every layer of the grid.

    ``given(step)`` may hand in destinations ``(R, k)`` that somebody else chose for the same tokens, in the order they
    were chosen; what they lack is recorded in ``shortfalls``, and they are used.
    """

    def __init__(
        self, variant: Variant, height: int, width: int, ratio: float, given: Callable[[int], Array] | None = None
    ) -> None:
        self.variant, self.given = variant, given
        self.regions = variant.regions(height, width)
        self.count = destination_count(self.regions, ratio)
        self.home = np.empty(height * width, int)
        for number, region in enumerate(self.regions):
            self.home[region] = number
        self.selected_at = self.weighed_at = self.seen_at = -1
        self.destinations = np.empty(0, int)
        self.A = self.A_tilde = np.empty(0)
        self.shortfalls: list[float] = []
        self.others = 0  # picks of somebody else that are not ours

    def see(self, tokens: Array, step: int) -> None:
        """``tokens`` ``(B, N, C)`` of a layer at ``step``; only the first layer of a step can renew the plan."""
        if step == self.seen_at:
            return
        self.seen_at = step
        select = self.selected_at < 0 or step - self.selected_at >= DESTINATIONS_EVERY
        if not select and step - self.weighed_at < WEIGHTS_EVERY:
            return
        cosine = cosines(tokens)
        if select:
            self.destinations, self.selected_at = self._selected(cosine, step), step
        self.weighed_at = step
        self.A = weights(cosine, self.destinations, None if self.variant.attention == "whole" else self.home)
        self.A_tilde = self.A / self.A.sum(2, keepdims=True)

    def _selected(self, cosine: Array, step: int) -> Array:
        similarity = (cosine.mean(0) + 1) / 2
        given = None if self.given is None else self.given(step)
        picked = []
        for number, region in enumerate(self.regions):
            local = similarity[np.ix_(region, region)]
            chosen = greedy(local, self.count)
            if given is not None:
                theirs = [int(np.flatnonzero(region == token)[0]) for token in given[number]]
                self.shortfalls.append(shortfall(local, theirs))
                self.others += len(set(theirs) - set(chosen))
                chosen = theirs
            picked.append(region[chosen])
        return np.concatenate(picked)

    def merge(self, tokens: Array) -> Array:
        """``Ã X``: ``(B, N, C)`` → ``(B, K, C)``."""
        return self.A_tilde @ tokens

    def unmerge(self, merged: Array) -> Array:
        """``Aᵀ Y``: ``(B, K, C)`` → ``(B, N, C)``."""
        return self.A.transpose(0, 2, 1) @ merged
