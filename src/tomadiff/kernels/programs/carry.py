# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# Triton reads annotations of compiled functions as its own types, so these functions have none.
"""``carry``: spread how destinations' answers changed over the answers that all tokens had, in one launch.

As ``unmerge_add``, but what is unmerged is the difference between new answers and those that the destinations had last.
The old ones are fetched from where they lie, so neither they nor the differences are ever written down.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tomadiff.kernels.programs import merge as merging


@triton.jit
def carry(
    merged,
    matrix,
    index,
    mask,
    places,
    residual,
    tokens,
    share,
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
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``tokens[b, x] = residual[b, x] + share · Σ_i matrix[b, r, l, i] · (merged[b, r·kept + i] − residual[b, y])``.

    ``x = index[r, l]`` is the token's place, and ``y = index[r, places[b, r, i]]`` that of destination ``i``.
    """
    group = tl.program_id(0).to(tl.int64)
    sample, region = group // regions, group % regions
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    group_of_plan = sample % samples_of_matrix * regions + region
    matrix += group_of_plan * kept * length
    places += group_of_plan * kept
    index += region * length
    merged += sample * merged_stride + region * kept * merged_token_stride
    residual += sample * sample_stride
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(0, kept, INNER):
        kth = start + tl.arange(0, INNER)
        home = tl.load(index + tl.load(places + kth, kth < kept, 0), kth < kept, 0)
        there = (kth < kept)[:, None] & (channel < channels)[None, :]
        new = tl.load(merged + kth[:, None] * merged_token_stride + channel[None, :], there, 0.0)
        old = tl.load(residual + home[:, None] * token_stride + channel[None, :], there, 0.0)
        change = (new.to(tl.float32) - old.to(tl.float32)).to(merged.dtype.element_ty)
        weigh = (row < length)[:, None] & (kth < kept)[None, :]
        weights = tl.load(matrix + row[:, None] * kept + kth[None, :], weigh, 0.0)
        total = tl.dot(weights, change, total, input_precision=PRECISION)
    real = tl.load(mask + region * length + row, row < length, 0) != 0  # padding has no place in raster order
    raster = tl.load(index + row, real, 0)
    inside = real[:, None] & (channel < channels)[None, :]
    had = tl.load(residual + raster[:, None] * token_stride + channel[None, :], inside, 0.0)
    total = had.to(tl.float32) + share * total
    target = tokens + (sample * count + raster)[:, None] * channels + channel[None, :]
    tl.store(target, total.to(tokens.dtype.element_ty), inside)


def tuning(rows: int, inner: int, element_size: int) -> dict[str, int]:
    """As ``merge`` has it; two blocks of tokens are in registers at a time, so they are narrower."""
    return {**merging.tuning(rows, inner, element_size), "CHANNELS": 32}


def launch(
    merged: Tensor, matrix: Tensor, index: Tensor, mask: Tensor, places: Tensor, residual: Tensor, share: float
) -> Tensor:
    """See :func:`tomadiff.kernels.carry`."""
    (samples_of_matrix, regions, length, kept), (samples, count, channels) = matrix.shape, residual.shape
    tokens = residual.new_empty(samples, count, channels)
    sizes = tuning(length, kept, merged.element_size())
    carry[merging.grid_of(samples * regions, channels, length, sizes)](
        merged, matrix, index, mask, places, residual, tokens, share,
        regions, length, kept, channels, samples_of_matrix,
        merged.stride(0), merged.stride(1), residual.stride(0), residual.stride(1), count,
        PRECISION=merging.precision(), **sizes,
    )  # fmt: skip
    return tokens
