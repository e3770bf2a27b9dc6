# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# Triton reads annotations of compiled functions as its own types, so these functions have none.
"""``merge_weights``: from tokens, or from cosines already known, to the matrices of a plan in one launch.

One program has one region of one sample. It takes the region's tokens in blocks of columns: a column's softmax needs
no other column. A destination's mass does, so the rows are divided by it in a second pass, which computes the weights
again instead of keeping them; regions of one block are done in one pass. All of it is float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_LIGHTEST = tl.constexpr(1e-6)  # these two as in weights.py
_NEGLIGIBLE = tl.constexpr(1e-9)


@triton.jit
def merge_weights(
    cosine,
    tokens,
    index,
    places,
    mask,
    merge,
    unmerge,
    mass,
    near,
    temperature,
    regions,
    length,
    kept,
    channels,
    sample_stride,
    token_stride,
    FROM_TOKENS: tl.constexpr,
    KEPT: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Fill ``merge``, ``unmerge``, ``mass`` and ``near`` of region ``program_id(0)``, counted over all samples."""
    group = tl.program_id(0).to(tl.int64)
    region = group % regions
    if FROM_TOKENS:
        source, stride = tokens + group // regions * sample_stride, token_stride
    else:
        source, stride = cosine + group * kept * length, length
    kth = tl.arange(0, KEPT)
    own = tl.load(places + group * kept + kth, kth < kept, 0)
    index += region * length
    mask += region * length
    merge += group * kept * length
    unmerge += group * kept * length
    total = tl.zeros([KEPT], tl.float32)
    closeness = tl.zeros([BLOCK], tl.float32)
    for start in range(0, PLACES, BLOCK):
        place = start + tl.arange(0, BLOCK)
        alike = _alike(source, stride, index, own, kth, place, kept, length, channels, FROM_TOKENS, CHANNELS)
        real = tl.load(mask + place, place < length, 0) != 0
        weights = _weights(alike, temperature, kth, kept, real)
        _store_unmerge(unmerge, weights, kth, place, kept, length)
        total += tl.sum(weights, axis=1)
        best = tl.max(tl.where((kth < kept)[:, None], alike, -1.0), axis=0)
        closeness += tl.where(real, (best + 1) / 2, 0.0)
        if PLACES == BLOCK:
            _store_merge(merge, weights, total, own, kth, place, kept, length)
    tl.store(mass + group * kept + kth, total.to(mass.dtype.element_ty), kth < kept)
    tl.store(near + group, tl.sum(closeness, axis=0))
    if PLACES != BLOCK:
        for start in range(0, PLACES, BLOCK):
            place = start + tl.arange(0, BLOCK)
            alike = _alike(source, stride, index, own, kth, place, kept, length, channels, FROM_TOKENS, CHANNELS)
            real = tl.load(mask + place, place < length, 0) != 0
            weights = _weights(alike, temperature, kth, kept, real)
            _store_merge(merge, weights, total, own, kth, place, kept, length)


@triton.jit
def _alike(
    source, stride, index, own, kth, place, kept, length, channels, FROM_TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):
    """``(KEPT, BLOCK)`` cosines of the destinations with the tokens at ``place``."""
    if FROM_TOKENS:
        rows = tl.load(index + place, place < length, 0)
        picked = tl.load(index + own)
        alike = _cosines(source, stride, picked, kth < kept, rows, place < length, channels, CHANNELS)
    else:  # not behind a return: Triton would compile this for tokens as well, and miss their dtype
        inside = (kth < kept)[:, None] & (place < length)[None, :]
        alike = tl.load(source + kth[:, None] * stride + place[None, :], inside, 0.0)
    return alike


@triton.jit
def _cosines(tokens, stride, picked, is_picked, rows, is_row, channels, CHANNELS: tl.constexpr):
    """Inner products over all channels, divided by the norms afterwards, as in ``select.cosines``."""
    products = tl.zeros([picked.shape[0], rows.shape[0]], tl.float32)
    picked_square = tl.zeros([picked.shape[0]], tl.float32)
    square = tl.zeros([rows.shape[0]], tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = (start + tl.arange(0, CHANNELS))[None, :]
        inside = channel < channels
        left = tl.load(tokens + picked[:, None] * stride + channel, is_picked[:, None] & inside, 0.0)
        right = tl.load(tokens + rows[:, None] * stride + channel, is_row[:, None] & inside, 0.0)
        products = tl.dot(left, tl.trans(right), products, input_precision="ieee")
        picked_square += tl.sum(left.to(tl.float32) * left.to(tl.float32), axis=1)
        square += tl.sum(right.to(tl.float32) * right.to(tl.float32), axis=1)
    scaled = products * _scale(square)[None, :] * _scale(picked_square)[:, None]
    scaled = tl.where(tl.abs(scaled) < float("inf"), scaled, 0.0)  # false for NaN as well
    return tl.minimum(tl.maximum(scaled, -1.0), 1.0)


@triton.jit
def _scale(square):
    """``1 / length``; 0 for tokens that are zero, not finite, or too long or short for float32."""
    lengths = tl.sqrt_rn(square)
    scale = tl.div_rn(1.0, tl.where(lengths > 0, lengths, 1.0))
    fine = (lengths > 0) & (lengths < float("inf")) & (scale < float("inf"))
    return tl.where(fine, scale, 0.0)


@triton.jit
def _weights(alike, temperature, kth, kept, real):
    """Softmax over destinations; the smallest become exact zeros, and columns of padding are zero."""
    logits = tl.where((kth < kept)[:, None], tl.div_rn(alike, temperature), float("-inf"))
    raised = tl.exp(logits - tl.max(logits, axis=0)[None, :])
    weights = raised / tl.sum(raised, axis=0)[None, :]
    return tl.where((weights > _NEGLIGIBLE) & real[None, :], weights, 0.0)


@triton.jit
def _store_unmerge(unmerge, weights, kth, place, kept, length):
    """The transpose, ``(length, kept)``, written as it lies in memory."""
    inside = (place < length)[:, None] & (kth < kept)[None, :]
    turned = tl.trans(weights).to(unmerge.dtype.element_ty)
    tl.store(unmerge + place[:, None] * kept + kth[None, :], turned, inside)


@triton.jit
def _store_merge(merge, weights, total, own, kth, place, kept, length):
    """Rows divided by their mass; a destination of no mass stands for itself."""
    itself = tl.where(own[:, None] == place[None, :], 1.0, 0.0)
    shares = weights / tl.maximum(total, _LIGHTEST)[:, None]
    rows = tl.where((total > _LIGHTEST)[:, None], shares, itself).to(merge.dtype.element_ty)
    inside = (kth < kept)[:, None] & (place < length)[None, :]
    tl.store(merge + kth[:, None] * length + place[None, :], rows, inside)


def tuning(length: int, kept: int, element_size: int) -> tuple[Any, dict[str, int]]:
    """The kernel, and the sizes it is compiled for; 16 is the least that a matrix unit takes."""
    places, rows = (max(16, triton.next_power_of_2(size)) for size in (length, kept))
    block = min(places, 64 if rows <= 64 else 32)
    warps = max(1, min(8, rows * block // 512))
    channels = 16 if rows > 64 and element_size == 4 else 32  # operands of exact float32 products lie in registers
    return merge_weights, {"KEPT": rows, "PLACES": places, "BLOCK": block, "CHANNELS": channels, "num_warps": warps}


def launch(
    tokens: Tensor | None,
    cosine: Tensor | None,
    index: Tensor,
    places: Tensor,
    mask: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See :func:`tomadiff.kernels.merge_weights`."""
    (samples, regions, kept), length = places.shape, index.shape[1]
    merge = places.new_empty(samples, regions, kept, length, dtype=dtype)
    unmerge = places.new_empty(samples, regions, length, kept, dtype=dtype)
    mass = places.new_empty(samples, regions, kept, dtype=dtype)
    near = places.new_empty(samples, regions, dtype=torch.float32)
    kernel, sizes = tuning(length, kept, dtype.itemsize)
    given = tokens if cosine is None else cosine.contiguous()
    assert given is not None
    rows = tokens if cosine is None else None
    kernel[(samples * regions,)](
        given,  # whichever of the two is absent is never read
        given,
        index,
        places.contiguous(),
        mask,
        merge,
        unmerge,
        mass,
        near,
        temperature,
        regions,
        length,
        kept,
        0 if rows is None else rows.shape[-1],
        0 if rows is None else rows.stride(0),
        0 if rows is None else rows.stride(1),
        FROM_TOKENS=rows is not None,
        **sizes,
    )
    return merge, unmerge, mass, near
