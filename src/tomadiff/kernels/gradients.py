"""Gradients of the kernels, in plain torch: merging and unmerging are linear, so each is the other's mirror image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def keep_for_merge(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    """Remember what :func:`of_merge` needs."""
    tokens, matrix, index = inputs
    ctx.count = tokens.shape[1]
    ctx.save_for_backward(matrix, index, tokens if ctx.needs_input_grad[1] else None)


def of_merge(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    """Gradients of ``merge`` for its tokens and its matrix."""
    matrix, index, tokens = ctx.saved_tensors
    parts = _by_region(grad, matrix.shape[1])
    to_tokens = _to_raster(_turned(matrix, grad) @ parts, index, ctx.count) if ctx.needs_input_grad[0] else None
    to_matrix = None if tokens is None else _summed(parts @ tokens[:, index].transpose(-1, -2), matrix)
    return to_tokens, to_matrix, None


def keep_for_unmerge_add(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    """Remember what :func:`of_unmerge_add` needs."""
    merged, matrix, index, mask, _, _, gate = inputs
    wanted = ctx.needs_input_grad[1] or ctx.needs_input_grad[6]
    ctx.save_for_backward(matrix, index, mask, gate, merged if wanted else None)


def of_unmerge_add(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of ``unmerge_add`` for merged tokens, matrix, residual and gate."""
    matrix, index, mask, gate, merged = ctx.saved_tensors
    gated = grad if gate is None else grad * gate[:, None]
    parts = gated[:, index] * mask[..., None]
    to_merged = (_turned(matrix, grad) @ parts).flatten(1, 2) if ctx.needs_input_grad[0] else None
    to_matrix = to_gate = None
    if merged is not None:
        given = _by_region(merged, matrix.shape[1])
        to_matrix = _summed(parts @ given.transpose(-1, -2), matrix)
        to_gate = (_repeated(matrix, grad) @ given * grad[:, index] * mask[..., None]).sum((1, 2))
    return to_merged, to_matrix, None, None, None, grad, None if gate is None else to_gate


def _by_region(merged: Tensor, regions: int) -> Tensor:
    """``(B, R·k, C)`` → ``(B, R, k, C)``."""
    return merged.reshape(merged.shape[0], regions, -1, merged.shape[-1])


def _repeated(matrix: Tensor, like: Tensor) -> Tensor:
    """The matrices of a plan for every sample of a batch."""
    return matrix.repeat(like.shape[0] // matrix.shape[0], 1, 1, 1)


def _turned(matrix: Tensor, like: Tensor) -> Tensor:
    return _repeated(matrix, like).transpose(-1, -2)


def _summed(by_sample: Tensor, matrix: Tensor) -> Tensor:
    """Samples that share a matrix add up to its gradient."""
    return by_sample.reshape(-1, *matrix.shape).sum(0)


def _to_raster(parts: Tensor, index: Tensor, count: int) -> Tensor:
    """``(B, R, L, C)`` added up where the index says: ``(B, N, C)``."""
    empty = torch.zeros(parts.shape[0], count, parts.shape[-1], dtype=parts.dtype, device=parts.device)
    return empty.index_add(1, index.flatten(), parts.flatten(1, 2))
