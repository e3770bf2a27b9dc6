"""Choosing destinations: which tokens of a region stay.

Selectors take the ``similarity`` ``(M, L, L)`` of the tokens of ``M`` regions (``(cos + 1) / 2``, see
:func:`cosines`) and a mask of the tokens that may be chosen, and give a :class:`Selection`. All regions run as one
batch. The plain-torch code here is the definition; faster equals may stand in for it.

:func:`facility_location` is the paper's choice. :func:`random`, :func:`strided` and :func:`kmeans` are there to
compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tomadiff.errors import SettingError, ShapeError
from tomadiff.utils.settings import named

_NEVER = float("-inf")
_LAST_RESORT = -1e30  # below every real gain, above _NEVER: tokens that are chosen only when nothing else is left
TIED = 2.0**-18  # gains this near differ by rounding alone; two tokens that are nearest to each other gain equally


@dataclass(frozen=True)
class Selection:
    """Destinations of ``M`` regions, in the order they were chosen.

    Attributes:
        indices: ``(M, count)`` places inside the region.
        gains: ``(M, count)`` what each choice added to the objective; ``None`` of selectors that have none.
    """

    indices: Tensor
    gains: Tensor | None = None


Selector = Callable[[Tensor, int, Tensor | None], Selection]
"""``(similarity (M, L, L), count, mask (M, L) or None) -> Selection``."""


# ---------------------------------------------------------------------------------------------- similarity
def inner_products(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Of tokens ``(..., L, C)`` with each other, ``(..., L, L)`` in float32, and their lengths ``(..., L)``.

    A token with NaN has a product with none; its length is NaN, and that of a token whose square overflows infinite.
    """
    rows = tokens.float()
    products = torch.matmul(rows, rows.transpose(-1, -2))
    lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
    return products.nan_to_num_(0.0, torch.inf, -torch.inf), lengths


def cosines(tokens: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cosines of tokens ``(..., L, C)`` with each other, in float32, and which tokens have one.

    Raw inner products are divided by the norms afterwards: one matrix product and no pass over the channels.

    Args:
        tokens: any float dtype.
        places: ``(..., k)`` rows to compare with all others; ``None`` means all rows (``k = L``).

    Returns:
        ``(..., k, L)`` cosines, and ``(..., L)`` true for usable tokens. Zero tokens, and tokens that are not finite
        or whose squared length overflows, have cosine 0 with all; only the latter two are not usable.
    """
    if places is None:
        return as_cosines(*inner_products(tokens))
    rows = tokens.float()
    products = torch.matmul(_picked(rows, places), rows.transpose(-1, -2))
    return as_cosines(products, torch.linalg.vector_norm(rows, dim=-1), places)


def as_cosines(products: Tensor, lengths: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As :func:`cosines`, of inner products ``(..., k, L)`` and lengths ``(..., L)`` that are known."""
    scale = lengths.reciprocal().nan_to_num_(0.0, 0.0, 0.0)  # of zero, infinity and NaN: none
    of_rows = scale if places is None else scale.gather(-1, places)
    scaled = products * scale[..., None, :] * of_rows[..., None]
    return scaled.nan_to_num_(0.0, 0.0, 0.0).clamp_(-1.0, 1.0), lengths < torch.inf


def _picked(rows: Tensor, places: Tensor) -> Tensor:
    """``(..., L, C)``, ``(..., k)`` → ``(..., k, C)``."""
    return rows.gather(-2, places[..., None].expand(*places.shape, rows.shape[-1]))


# ---------------------------------------------------------------------------------------------- objectives
class FacilityLocation:
    """``f(T) = Σ_i max_{j∈T} S_ij``: every token should have a destination that is like it."""

    def start(self, similarity: Tensor) -> None:
        """Begin with the empty set, on a similarity ``(M, L, L)``."""
        self.by_candidate = similarity.transpose(1, 2).contiguous()  # row v: how like v every token is
        self.best = similarity.new_zeros(similarity.shape[:2])
        self._difference = torch.empty_like(self.by_candidate)

    def gains(self) -> Tensor:
        """``(M, L)`` what each token would add to the set chosen so far."""
        torch.sub(self.by_candidate, self.best[:, None, :], out=self._difference)
        return self._difference.clamp_(min=0).sum(-1)

    def add(self, chosen: Tensor) -> None:
        """Add token ``chosen[m]`` ``(M,)`` to the set of region ``m``."""
        torch.maximum(self.best, _rows(self.by_candidate, chosen), out=self.best)


def _masked(similarity: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the rows and columns of tokens that do not count."""
    return similarity if mask is None else torch.where(mask[:, :, None] & mask[:, None, :], similarity, 0.0)


def _rows(matrix: Tensor, chosen: Tensor) -> Tensor:
    """``(M, L, L)``, ``(M,)`` → row ``chosen[m]`` of every ``matrix[m]``: ``(M, L)``."""
    return matrix[torch.arange(len(chosen), device=chosen.device), chosen]


# ---------------------------------------------------------------------------------------------- selectors
def greedy(similarity: Tensor, count: int, mask: Tensor | None = None) -> Selection:
    """Choose ``count`` tokens of every region one after the other, each time the one that adds most to the coverage.

    Gains within ``TIED`` of the best are ties. They go to the lowest index, so that rounding, which differs between
    devices, kernels and batch sizes, does not choose. No token is chosen twice. Masked tokens come after all others,
    by index, so padding at a region's end stays out as long as ``count`` is no more than the region's real tokens.

    Args:
        similarity: ``(M, L, L)``, non-negative; ``similarity[m, i, j]`` says how well ``j`` stands for ``i``.
        count: destinations per region.
        mask: ``(M, L)`` true for tokens that may be chosen.
    """
    _require_count(count, similarity.shape[1])
    clean, objective = _masked(similarity, mask), FacilityLocation()
    objective.start(clean)
    bar = clean.new_zeros(clean.shape[:2]) if mask is None else torch.where(mask, 0.0, _LAST_RESORT)
    indices, gains = [], []
    for _ in range(count):
        gain = objective.gains()
        chosen = _first_of_best(gain + bar)
        objective.add(chosen)
        bar.scatter_(1, chosen[:, None], _NEVER)
        indices.append(chosen)
        gains.append(gain.gather(1, chosen[:, None])[:, 0])
    return Selection(torch.stack(indices, 1), torch.stack(gains, 1))


def _first_of_best(values: Tensor) -> Tensor:
    """``(M, L)`` → ``(M,)`` the lowest place whose value is the greatest, or tied with it."""
    return (values >= values.amax(-1, keepdim=True) - TIED).view(torch.uint8).argmax(-1)  # a view costs no launch


def facility_location(
    tokens: Tensor | None = None,
    count: int = 1,
    mask: Tensor | None = None,
    *,
    similarity: Tensor | None = None,
) -> Selection:
    """Greedy facility location on ``tokens`` ``(M, L, C)``, or on a given ``similarity`` ``(M, L, L)``.

    On a non-negative similarity the chosen set reaches at least ``1 − 1/e`` of the best possible value.
    """
    if (tokens is None) == (similarity is None):
        raise SettingError("facility_location takes either tokens or similarity=…, and not both.")
    if similarity is None:
        assert tokens is not None
        cosine, usable = cosines(tokens)
        similarity, mask = (cosine + 1) / 2, usable if mask is None else mask & usable
    return greedy(similarity, count, mask)


def random(
    similarity: Tensor,
    count: int,
    mask: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    sample: int | None = None,
) -> Selection:
    """Random destinations; its own generator, so that the sampler's noise never changes.

    ``sample`` is the number of regions of one image: all images of a batch choose alike, as each would alone.
    """
    regions, length = similarity.shape[:2]
    _require_count(count, length)
    own, of_one = generator or torch.Generator().manual_seed(0), sample or regions
    values = torch.rand((of_one, length), generator=own, device=own.device).to(similarity.device)
    values = values.repeat(regions // of_one, 1)
    if mask is not None:
        last = -1.0 - torch.arange(length, device=values.device)
        values = torch.where(mask, values, last)  # padding last of all
    return Selection(values.topk(count).indices)


def strided(similarity: Tensor, count: int, mask: Tensor | None = None) -> Selection:
    """Evenly spaced destinations among the tokens that may be chosen."""
    regions, length = similarity.shape[:2]
    _require_count(count, length)
    if mask is None:
        mask = torch.ones(regions, length, dtype=torch.bool, device=similarity.device)
    steps = torch.arange(count, device=similarity.device)
    places = (2 * steps + 1) * mask.sum(-1, keepdim=True) // (2 * count)
    allowed_first = torch.argsort((~mask).to(torch.int8), dim=-1, stable=True)
    return Selection(allowed_first.gather(1, torch.maximum(places, steps)))


def kmeans(similarity: Tensor, count: int, mask: Tensor | None = None, *, rounds: int = 10) -> Selection:
    """Medoids of spherical k-means: ``count`` clusters, each stood for by its most central token.

    Centres are never formed: a cluster's closeness to a token is the mean of the token's cosines with its members,
    divided by the length of that mean.
    """
    cosine = 2 * similarity - 1
    seeds = strided(similarity, count, mask).indices
    members = torch.zeros_like(similarity[:, :, :count]).scatter_(1, seeds[:, None, :], 1.0)
    real = cosine.new_ones(cosine.shape[:2]) if mask is None else mask.to(cosine.dtype)
    closeness = _closeness(cosine, members)
    for _ in range(rounds):
        moved = torch.nn.functional.one_hot(closeness.argmax(-1), count).to(cosine.dtype) * real[..., None]
        members = torch.where(moved.sum(1, keepdim=True) > 0, moved, members)  # an empty cluster stays as it was
        closeness = _closeness(cosine, members)
    return Selection(_distinct_nearest(closeness.transpose(1, 2), mask))


def _closeness(cosine: Tensor, members: Tensor) -> Tensor:
    """Cosine of every token with every cluster's centre: ``(M, L, L)``, ``(M, L, k)`` → ``(M, L, k)``."""
    towards = torch.bmm(cosine, members)
    lengths = (members * towards).sum(1, keepdim=True).clamp_min(1e-12).sqrt()
    return towards / lengths


def _distinct_nearest(closeness: Tensor, mask: Tensor | None) -> Tensor:
    """``(M, k, L)`` closeness of centres to tokens → ``(M, k)`` tokens, none of them twice."""
    bar = torch.zeros_like(closeness[:, 0]) if mask is None else torch.where(mask, 0.0, _LAST_RESORT)
    indices = []
    for centre in closeness.unbind(1):
        chosen = (centre + bar).argmax(-1, keepdim=True)
        bar = bar.scatter(1, chosen, _NEVER)
        indices.append(chosen)
    return torch.cat(indices, 1)


def _require_count(count: int, length: int) -> None:
    if not 1 <= count <= length:
        raise ShapeError(f"Asked for {count} destinations in regions of {length} tokens; choose 1 to {length}.")


SELECTORS: dict[str, Selector] = {
    "facility_location": greedy,
    "random": random,
    "strided": strided,
    "kmeans": kmeans,
}
"""Selectors by the name that settings and the command line use."""

BLIND = ("random", "strided", "kmeans")
"""Those that do not say what a token is worth: regions cannot share one number of destinations by them."""

AnySelector = Annotated[str, named(SELECTORS)] | Selector
"""A selector as a setting."""
