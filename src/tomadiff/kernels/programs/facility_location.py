# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# Triton reads annotations of compiled functions as its own types, so these functions have none.
"""``facility_location``: the greedy choice of every region, all of it in one launch.

One program has one region. Up to 128 tokens, the similarity is read once and stays in registers while destinations
are chosen. A similarity of 256 tokens (256 KiB) is as large as all registers of a multiprocessor, so it is read again,
block by block, for every choice: it comes from the L2 cache, and still nothing but the result is written.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_RESIDENT = 128  # tokens whose similarity fits into registers beside everything else

_LAST_RESORT = tl.constexpr(-1e30)  # as in select.greedy: chosen only when nothing else is left
_NEVER = tl.constexpr(float("-inf"))


@triton.jit
def resident(similarity, mask, indices, gains, best_out, length, count, MASKED: tl.constexpr, PLACES: tl.constexpr):
    """Regions whose similarity ``(PLACES, PLACES)`` stays in registers."""
    region = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    usable = _usable(mask, region, place, length, MASKED)
    both = usable[:, None] & usable[None, :]
    rows = similarity + region * length * length + place[:, None] * length
    alike = tl.load(rows + place[None, :], both, 0.0).to(tl.float32)
    bar = _bar(place, usable, length)
    best = tl.zeros([PLACES], tl.float32)
    for step in range(count):
        gain = tl.sum(tl.maximum(alike - best[:, None], 0.0), axis=0)
        chosen = tl.argmax(gain + bar, axis=0)
        here = place == chosen
        _note(indices, gains, region * count + step, chosen, gain, here)
        bar = tl.where(here, _NEVER, bar)
        best = tl.maximum(best, tl.sum(tl.where(here[None, :], alike, 0.0), axis=1))
    tl.store(best_out + region * length + place, best, place < length)


@triton.jit
def streamed(
    similarity,
    mask,
    indices,
    gains,
    best_out,
    length,
    count,
    MASKED: tl.constexpr,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Larger regions: every choice reads the similarity again, ``ROWS`` of its ``PLACES`` rows at a time."""
    region = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    usable = _usable(mask, region, place, length, MASKED)
    bar = _bar(place, usable, length)
    here_of_block = tl.arange(0, ROWS)
    block = tl.arange(0, PLACES // ROWS)[:, None]
    token = block * ROWS + here_of_block[None, :]
    counts = _usable(mask, region, token, length, MASKED)
    best = tl.where(counts, 0.0, float("inf"))  # a token that does not count can never be served better
    rows = similarity + region * length * length
    for step in range(count):
        missing = tl.zeros([ROWS, PLACES], tl.float32)
        for number in range(PLACES // ROWS):
            best_here = tl.max(tl.where(block == number, best, 0.0), axis=0)
            row = number * ROWS + here_of_block
            inside = (row < length)[:, None] & usable[None, :]
            alike = tl.load(rows + row[:, None] * length + place[None, :], inside, 0.0).to(tl.float32)
            missing += tl.maximum(alike - best_here[:, None], 0.0)
        gain = tl.sum(missing, axis=0)
        chosen = tl.argmax(gain + bar, axis=0)
        here = place == chosen
        _note(indices, gains, region * count + step, chosen, gain, here)
        serves = tl.sum(tl.where(here & usable, 1, 0), axis=0) > 0
        bar = tl.where(here, _NEVER, bar)
        best = tl.maximum(best, tl.load(rows + token * length + chosen, counts & serves, 0.0).to(tl.float32))
    tl.store(best_out + region * length + token, tl.where(counts, best, 0.0), token < length)


@triton.jit
def _usable(mask, region, place, length, MASKED: tl.constexpr):
    """Which of the places hold a token that counts."""
    if MASKED:
        return tl.load(mask + region * length + place, place < length, 0) != 0
    return place < length


@triton.jit
def _bar(place, usable, length):
    """What to add to gains: masked tokens come last, padding never."""
    return tl.where(place < length, tl.where(usable, 0.0, _LAST_RESORT), _NEVER)


@triton.jit
def _note(indices, gains, where, chosen, gain, here):
    """Write one choice down."""
    tl.store(indices + where, chosen.to(tl.int64))
    tl.store(gains + where, tl.sum(tl.where(here, gain, 0.0), axis=0))


def tuning(length: int) -> tuple[Any, dict[str, int]]:
    """The kernel for regions of ``length`` tokens, and the sizes it is compiled for."""
    places = triton.next_power_of_2(length)
    if places <= LARGEST_RESIDENT:
        return resident, {"PLACES": places, "num_warps": max(1, places * places // 1024)}
    return streamed, {"PLACES": places, "ROWS": 32, "num_warps": 8}


def launch(similarity: Tensor, count: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`tomadiff.kernels.facility_location`."""
    regions, length = similarity.shape[:2]
    indices = similarity.new_empty(regions, count, dtype=torch.long)
    gains = similarity.new_empty(regions, count, dtype=torch.float32)
    best = similarity.new_empty(regions, length, dtype=torch.float32)
    kernel, sizes = tuning(length)
    given = similarity if mask is None else mask.contiguous()  # some pointer: without a mask it is never read
    kernel[(regions,)](
        similarity.contiguous(), given, indices, gains, best, length, count, MASKED=mask is not None, **sizes
    )
    return indices, gains, best
