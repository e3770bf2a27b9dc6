# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# Triton reads annotations of compiled functions as its own types, so these functions have none.
"""``local_plan``: from tokens to the destinations and matrices of a plan, in one launch or two.

One program has one region of one sample. It multiplies the region's tokens with each other, chooses destinations by
facility location, computes their weights, and fits the least-squares unmerge. All of it happens in registers, as
matrices over the region's places; a destination is a place with a rank. Two launches are needed where samples share
their destinations (a group): a choice by the mean of the group's cosines, then weights for every sample. The same two
are needed where regions share their number: the first tells what every place is worth, the second keeps the first so
many of a region. The fit is Gauss–Jordan elimination; its matrix is positive definite, so it needs no pivoting. All of
it is float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_LAST_RESORT = tl.constexpr(-1e30)  # this and the next two as in select.py
_NEVER = tl.constexpr(float("-inf"))
_TIED = tl.constexpr(2.0**-18)
_LIGHTEST = tl.constexpr(1e-6)  # this and the next as in weights.py
_NEGLIGIBLE = tl.constexpr(1e-9)
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def local_plan(
    tokens,
    index,
    mask,
    places,
    merge,
    unmerge,
    mass,
    near,
    worth,
    starts,
    temperature,
    pull,
    groups,
    members,
    regions,
    length,
    kept,
    channels,
    count,
    sample_stride,
    token_stride,
    CHOOSES: tl.constexpr,
    WEIGHTS: tl.constexpr,
    FITS: tl.constexpr,
    SHARES: tl.constexpr,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Region ``program_id(0) % regions`` of the samples ``g, g + groups, …`` of group ``g = program_id(0) // regions``.

    With ``WEIGHTS``, groups are of one sample.
    """
    region = (tl.program_id(0) % regions).to(tl.int64)
    group = (tl.program_id(0) // regions).to(tl.int64)
    place = tl.arange(0, PLACES)
    inside = place < length
    rows = tl.load(index + region * length + place, inside, 0)
    real = tl.load(mask + region * length + place, inside, 0) != 0
    if CHOOSES:
        products = tl.zeros([PLACES, PLACES], tl.float32)
        cosine = tl.zeros([PLACES, PLACES], tl.float32)
        usable = real
        for member in range(members):
            source = tokens + (group + member * groups) * sample_stride
            own = _products(source, token_stride, rows, inside, channels, CHANNELS)
            usable = usable & (_diagonal(own, place) < float("inf"))  # false for NaN as well
            products = _without_nan(own)
            cosine += _cosines(products, place)
        cosine = cosine / members
        rank, value = _chosen(cosine, usable, real, place, length, kept)
        for member in range(members):
            where = (group + member * groups) * regions + region
            tl.store(places + where * kept + rank, place.to(tl.int64), rank >= 0)
            if SHARES:
                tl.store(worth + where * kept + rank, value, rank >= 0)
    else:
        own = _products(tokens + group * sample_stride, token_stride, rows, inside, channels, CHANNELS)
        products = _without_nan(own)
        cosine = _cosines(products, place)
        rank = _ranks(places + (group * regions + region) * kept, place, kept)
    if WEIGHTS:
        where = group * regions + region
        order = rank
        if SHARES:
            begin = starts + where + group  # one more than regions for every sample
            quota = (tl.load(begin + 1) - tl.load(begin)).to(tl.int32)
            rank = tl.where(order < quota, order, -1)
        else:
            quota = kept
        weights = _weights(cosine, temperature, rank >= 0, real)
        total = tl.sum(weights, axis=1)
        averages = _averages(weights, total, rank, place)
        spread = tl.trans(weights)
        if FITS:
            spread = _fitted(products, averages, spread, rank, place, pull, quota)
        _store(merge + where * kept * length, averages, order[:, None] * length + place[None, :], order, inside)
        _store_turned(unmerge + where * kept * length, spread, place[:, None] * kept + order[None, :], order, inside)
        tl.store(mass + where * kept + order, total.to(mass.dtype.element_ty), order >= 0)
        best = tl.max(tl.where((rank >= 0)[:, None], cosine, -1.0), axis=0)
        tl.store(near + where, tl.sum(tl.where(real, (best + 1) / 2, 0.0), axis=0) / count)


@triton.jit
def _products(tokens, stride, rows, inside, channels, CHANNELS: tl.constexpr):
    """``(PLACES, PLACES)`` inner products of the tokens at ``rows``."""
    products = tl.zeros([rows.shape[0], rows.shape[0]], tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = (start + tl.arange(0, CHANNELS))[None, :]
        there = inside[:, None] & (channel < channels)
        part = tl.load(tokens + rows[:, None] * stride + channel, there, 0.0)
        products = tl.dot(part, tl.trans(part), products, input_precision="ieee")
    return products


@triton.jit
def _diagonal(matrix, place):
    return tl.sum(tl.where(place[:, None] == place[None, :], matrix, 0.0), axis=1)


@triton.jit
def _without_nan(matrix):
    return tl.where(matrix == matrix, matrix, 0.0)


@triton.jit
def _cosines(products, place):
    """Inner products divided by lengths, as in ``select.cosines``."""
    lengths = tl.sqrt_rn(_diagonal(products, place))
    fine = (lengths > 0) & (lengths < float("inf"))
    scale = tl.where(fine, tl.div_rn(1.0, tl.where(fine, lengths, 1.0)), 0.0)
    scaled = products * scale[None, :] * scale[:, None]
    scaled = tl.where(tl.abs(scaled) < float("inf"), scaled, 0.0)  # false for NaN as well
    return tl.minimum(tl.maximum(scaled, -1.0), 1.0)


@triton.jit
def _chosen(cosine, usable, real, place, length, kept):
    """``(PLACES,)`` when each place was chosen, −1 for those that were not; see ``select.greedy``.

    And what each is worth, see ``quota.worth``.
    """
    alike = tl.where(usable[:, None] & usable[None, :], (cosine + 1) / 2, 0.0)
    bar = tl.where(place < length, tl.where(usable, 0.0, _LAST_RESORT), _NEVER)
    best = tl.zeros([place.shape[0]], tl.float32)
    rank = tl.full([place.shape[0]], -1, tl.int32)
    value = tl.full([place.shape[0]], float("inf"), tl.float32)
    least = float("inf")
    for step in range(kept):
        gain = tl.sum(tl.maximum(alike - best[:, None], 0.0), axis=0)
        allowed = gain + bar
        tied = (allowed >= tl.max(allowed, axis=0) - _TIED).to(tl.int32)
        here = place == tl.argmax(tied, axis=0)  # the first of them
        bar = tl.where(here, _NEVER, bar)
        best = tl.maximum(best, tl.sum(tl.where(here[None, :], alike, 0.0), axis=1))
        rank = tl.where(here, step, rank)
        added = tl.where(usable, gain, tl.where(real, _LOWEST, _NEVER))
        own = tl.sum(tl.where(here, added, 0.0), axis=0)
        least = tl.where(step > 0, tl.minimum(least, own), float("inf"))  # the first is worth more than any other
        value = tl.where(here, least, value)
    return rank, value


@triton.jit
def _ranks(places, place, kept):
    """The same of destinations that are known."""
    rank = tl.full([place.shape[0]], -1, tl.int32)
    for step in range(kept):
        rank = tl.where(place == tl.load(places + step), step, rank)
    return rank


@triton.jit
def _weights(cosine, temperature, chosen, real):
    """``(PLACES, PLACES)`` softmax over chosen rows; rows of others and columns of padding are zero."""
    logits = tl.where(chosen[:, None], tl.div_rn(cosine, temperature), float("-inf"))
    raised = tl.exp(logits - tl.max(logits, axis=0)[None, :])
    weights = raised / tl.sum(raised, axis=0)[None, :]
    return tl.where((weights > _NEGLIGIBLE) & real[None, :], weights, 0.0)


@triton.jit
def _averages(weights, total, rank, place):
    """Chosen rows divided by their sum; a destination that nobody joins stands for itself."""
    itself = tl.where((place[:, None] == place[None, :]) & (rank >= 0)[:, None], 1.0, 0.0)
    return tl.where((total > _LIGHTEST)[:, None], weights / tl.maximum(total, _LIGHTEST)[:, None], itself)


@triton.jit
def _merged_products(products, averages, rank, place, kept):
    """Inner products of tokens with merged tokens, and of those with each other, one destination at a time.

    An exact product of float32 matrices would keep its operands in registers, and they do not fit.
    """
    cross = tl.zeros([place.shape[0], place.shape[0]], tl.float32)
    for step in range(kept):
        here = rank == step
        row = tl.sum(tl.where(here[:, None], averages, 0.0), axis=0)
        column = tl.sum(products * row[None, :], axis=1)
        cross = tl.where(here[None, :], column[:, None], cross)
    gram = tl.zeros([place.shape[0], place.shape[0]], tl.float32)
    for step in range(kept):
        here = rank == step
        row = tl.sum(tl.where(here[:, None], averages, 0.0), axis=0)
        gram = tl.where(here[:, None], tl.sum(row[:, None] * cross, axis=0)[None, :], gram)
    return cross, gram


@triton.jit
def _fitted(products, averages, transposed, rank, place, pull, kept):
    """``(PLACES, PLACES)`` whose chosen columns are ``unmerging.least_squares``; the transpose if it has none."""
    chosen = rank >= 0
    cross, gram = _merged_products(products, averages, rank, place, kept)
    size = tl.sum(_diagonal(gram, place), axis=0) / kept
    penalty = pull * tl.where(size > _TINY, size, 1.0)
    gram += tl.where(place[:, None] == place[None, :], penalty, 0.0)
    free = tl.where(chosen[None, :], cross + penalty * transposed, 0.0)
    shift = tl.where(chosen, 1.0, 0.0)  # becomes the column sums of the inverse
    smallest = penalty
    for step in range(kept):
        here = rank == step
        row = tl.sum(tl.where(here[:, None], gram, 0.0), axis=0)
        pivot = tl.sum(tl.where(here, row, 0.0), axis=0)
        smallest = tl.where(pivot > 0, smallest, 0.0)  # NaN is not above zero either
        column = tl.sum(tl.where(here[None, :], gram, 0.0), axis=1) / pivot
        solved = tl.sum(tl.where(here[None, :], free, 0.0), axis=1) / pivot
        moved = tl.sum(tl.where(here, shift, 0.0), axis=0) / pivot
        gram = tl.where(here[None, :], column[:, None], gram - column[:, None] * row[None, :])
        free = tl.where(here[None, :], solved[:, None], free - solved[:, None] * row[None, :])
        shift = tl.where(here, moved, shift - moved * row)
    shift = tl.where(chosen, shift, 0.0)
    excess = tl.sum(free, axis=1) - 1
    summed = free - excess[:, None] * (shift / tl.sum(shift, axis=0))[None, :]
    broken = tl.sum(tl.sum(tl.where(tl.abs(summed) < float("inf"), 0, 1), axis=1), axis=0)
    return tl.where((smallest > 0) & (broken == 0), summed, transposed)


@triton.jit
def _store(target, matrix, where, rank, inside):
    """One row for every destination, by rank."""
    tl.store(target + where, matrix.to(target.dtype.element_ty), (rank >= 0)[:, None] & inside[None, :])


@triton.jit
def _store_turned(target, matrix, where, rank, inside):
    """One column for every destination, by rank."""
    tl.store(target + where, matrix.to(target.dtype.element_ty), inside[:, None] & (rank >= 0)[None, :])


def tuning(length: int, element_size: int, *, weights: bool = True) -> tuple[Any, dict[str, int]]:
    """The kernel, and the sizes it is compiled for; 16 is the least that a matrix unit takes."""
    places = max(16, triton.next_power_of_2(length))
    channels = 16 if element_size == 4 else 32  # operands of exact float32 products lie in registers
    warps = max(2, places * places // 256) if weights else max(1, places * places // 512)  # fewer spill registers
    return local_plan, {"PLACES": places, "CHANNELS": channels, "num_warps": warps}


def launch(
    tokens: Tensor,
    index: Tensor,
    mask: Tensor,
    places: Tensor | None,
    groups: int,
    kept: int,
    temperature: float,
    pull: float | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :func:`tomadiff.kernels.local_plan`."""
    samples, (regions, length) = tokens.shape[0], index.shape
    chosen = index.new_empty(samples, regions, kept) if places is None else places.clone()
    merge = tokens.new_empty(samples, regions, kept, length)
    unmerge = tokens.new_empty(samples, regions, length, kept)
    mass = tokens.new_empty(samples, regions, kept)
    near = tokens.new_empty(samples, regions, dtype=torch.float32)

    together = places is None and groups < samples
    if together:
        _choose(tokens, index, mask, chosen, near, groups)
    kernel, sizes = tuning(length, tokens.element_size())
    kernel[(samples * regions,)](
        tokens, index, mask, chosen, merge, unmerge, mass, near, near, near if starts is None else starts,
        temperature, pull or 0.0, samples, 1, regions, length, kept, tokens.shape[2], tokens.shape[1],
        tokens.stride(0), tokens.stride(1), CHOOSES=places is None and not together, WEIGHTS=True,
        FITS=pull is not None, SHARES=starts is not None, **sizes,
    )  # fmt: skip
    return chosen, merge, unmerge, mass, near


def launch_choice(tokens: Tensor, index: Tensor, mask: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """See :func:`tomadiff.kernels.local_choice`."""
    chosen = index.new_empty(tokens.shape[0], *index.shape)
    worth = tokens.new_empty(chosen.shape, dtype=torch.float32)
    _choose(tokens, index, mask, chosen, worth, groups, shares=True)
    return chosen, worth


def _choose(
    tokens: Tensor, index: Tensor, mask: Tensor, chosen: Tensor, worth: Tensor, groups: int, *, shares: bool = False
) -> None:
    """Write the destinations of every sample to ``chosen``, and what they are worth to ``worth`` if regions share."""
    samples, regions, kept = chosen.shape
    kernel, sizes = tuning(index.shape[1], tokens.element_size(), weights=False)
    kernel[(groups * regions,)](
        tokens, index, mask, chosen, tokens, tokens, tokens, worth, worth, worth, 1.0, 0.0,
        groups, samples // groups, regions, index.shape[1], kept, tokens.shape[2], tokens.shape[1],
        tokens.stride(0), tokens.stride(1), CHOOSES=True, WEIGHTS=False, FITS=False, SHARES=shares, **sizes,
    )  # fmt: skip
