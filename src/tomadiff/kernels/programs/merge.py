# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# Triton reads annotations of compiled functions as its own types, so these functions have none.
"""``merge`` and ``unmerge_add``: small matrix products that fetch and place tokens in raster order themselves.

One program makes ``ROWS`` × ``CHANNELS`` numbers of one region of one sample. Tokens are never copied into region order
and back: ``merge`` reads them where they lie, ``unmerge_add`` writes them where they belong, and adds what is there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def merge(
    tokens,
    matrix,
    index,
    starts,
    merged,
    regions,
    length,
    kept,
    channels,
    samples_of_matrix,
    merged_count,
    sample_stride,
    token_stride,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``merged[b, first(r) + i] = Σ_l matrix[b, r, i, l] · tokens[b, index[r, l]]``; see :func:`_rows_of`."""
    sample, region, row, channel = _part(regions, ROWS, CHANNELS)
    own = sample % samples_of_matrix
    first, quota = _rows_of(starts, own, region, regions, kept, SHARES)
    matrix += (own * regions + region) * kept * length
    tokens += sample * sample_stride
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(0, length, INNER):
        place = start + tl.arange(0, INNER)
        raster = tl.load(index + region * length + place, place < length, 0)
        rows = tokens + raster[:, None] * token_stride
        total = _add_product(total, matrix, length, row, place, quota, length, rows, channel, channels, PRECISION)
    target = merged + (sample * merged_count + first + row)[:, None] * channels + channel[None, :]
    inside = (row < quota)[:, None] & (channel < channels)[None, :]
    tl.store(target, total.to(merged.dtype.element_ty), inside)


@triton.jit
def unmerge_add(
    merged,
    matrix,
    index,
    mask,
    starts,
    residual,
    tokens,
    regions,
    length,
    kept,
    channels,
    samples_of_matrix,
    merged_stride,
    merged_token_stride,
    sample_stride,
    token_stride,
    count,
    WITH_RESIDUAL: tl.constexpr,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``tokens[b, index[r, l]] = residual[…] + Σ_i matrix[b, r, l, i] · merged[b, first(r) + i]``."""
    sample, region, row, channel = _part(regions, ROWS, CHANNELS)
    own = sample % samples_of_matrix
    first, quota = _rows_of(starts, own, region, regions, kept, SHARES)
    matrix += (own * regions + region) * kept * length
    merged += sample * merged_stride + first * merged_token_stride
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(0, quota, INNER):
        place = start + tl.arange(0, INNER)
        rows = merged + place[:, None] * merged_token_stride
        total = _add_product(total, matrix, kept, row, place, length, quota, rows, channel, channels, PRECISION)
    real = tl.load(mask + region * length + row, row < length, 0) != 0  # padding has no place in raster order
    raster = tl.load(index + region * length + row, real, 0)
    inside = real[:, None] & (channel < channels)[None, :]
    if WITH_RESIDUAL:
        there = residual + sample * sample_stride + raster[:, None] * token_stride + channel[None, :]
        total += tl.load(there, inside, 0.0).to(tl.float32)
    target = tokens + (sample * count + raster)[:, None] * channels + channel[None, :]
    tl.store(target, total.to(tokens.dtype.element_ty), inside)


@triton.jit
def _part(regions, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Sample, region, rows and channels of this program."""
    group = tl.program_id(0).to(tl.int64)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return group // regions, group % regions, row, channel


@triton.jit
def _rows_of(starts, sample, region, regions, kept, SHARES: tl.constexpr):
    """The first merged token of a region, and how many it has: ``kept`` of all, or as many as it was allotted."""
    if SHARES:
        starts += sample * (regions + 1) + region
        first = tl.load(starts)
        quota = (tl.load(starts + 1) - first).to(tl.int32)
    else:
        first = region * kept
        quota = kept
    return first, quota


@triton.jit
def _add_product(total, matrix, stride, row, inner, rows, length, tokens, channel, channels, PRECISION: tl.constexpr):
    """Add to ``total`` one block of a ``(rows, length)`` matrix times the tokens at the pointers ``tokens``."""
    weigh = (row < rows)[:, None] & (inner < length)[None, :]
    weights = tl.load(matrix + row[:, None] * stride + inner[None, :], weigh, 0.0)
    here = (inner < length)[:, None] & (channel < channels)[None, :]
    return tl.dot(weights, tl.load(tokens + channel[None, :], here, 0.0), total, input_precision=PRECISION)


def tuning(rows: int, inner: int, element_size: int) -> dict[str, int]:
    """The sizes a ``(rows, inner)`` matrix is compiled for; 16 is the least that a matrix unit takes."""
    high, deep = (min(64, max(16, triton.next_power_of_2(size))) for size in (rows, inner))
    if element_size == 4:  # exact float32 products need their operands in registers: smaller blocks
        return {"ROWS": high, "INNER": 16, "CHANNELS": 32, "num_warps": 4}
    return {"ROWS": high, "INNER": deep, "CHANNELS": 64, "num_warps": 4}


def launch_merge(tokens: Tensor, matrix: Tensor, index: Tensor, starts: Tensor | None, count: int) -> Tensor:
    """See :func:`tomadiff.kernels.merge`."""
    (samples_of_matrix, regions, kept, length), (samples, _, channels) = matrix.shape, tokens.shape
    merged = tokens.new_empty(samples, count, channels)
    sizes = tuning(kept, length, tokens.element_size())
    merge[grid_of(samples * regions, channels, kept, sizes)](
        tokens,
        matrix,
        index,
        index if starts is None else starts,  # not read if absent
        merged,
        regions,
        length,
        kept,
        channels,
        samples_of_matrix,
        count,
        tokens.stride(0),
        tokens.stride(1),
        SHARES=starts is not None,
        PRECISION=precision(),
        **sizes,
    )
    return merged


def launch_unmerge_add(
    merged: Tensor,
    matrix: Tensor,
    index: Tensor,
    mask: Tensor,
    count: int,
    residual: Tensor | None,
    starts: Tensor | None,
) -> Tensor:
    """See :func:`tomadiff.kernels.unmerge_add`."""
    (samples_of_matrix, regions, length, kept), (samples, _, channels) = matrix.shape, merged.shape
    tokens = merged.new_empty(samples, count, channels)
    sizes = tuning(length, kept, merged.element_size())
    there = tokens if residual is None else residual
    unmerge_add[grid_of(samples * regions, channels, length, sizes)](
        merged,
        matrix,
        index,
        mask,
        index if starts is None else starts,
        there,  # not read if absent
        tokens,
        regions,
        length,
        kept,
        channels,
        samples_of_matrix,
        merged.stride(0),
        merged.stride(1),
        there.stride(0),
        there.stride(1),
        count,
        WITH_RESIDUAL=residual is not None,
        SHARES=starts is not None,
        PRECISION=precision(),
        **sizes,
    )
    return tokens


def grid_of(groups: int, channels: int, rows: int, sizes: dict[str, int]) -> tuple[int, Any, Any]:
    """How many programs, along each axis."""
    return groups, triton.cdiv(channels, sizes["CHANNELS"]), triton.cdiv(rows, sizes["ROWS"])


def precision() -> str:
    """Products of float32 are as exact as torch's own."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
