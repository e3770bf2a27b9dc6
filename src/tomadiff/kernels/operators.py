"""The kernels as operators of torch, with fakes, so that compiled code can pass through.

Nothing here needs Triton until an operator is called on real tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from tomadiff.errors import SettingError, ShapeError


# ---------------------------------------------------------------------------------------------- local_plan
@custom_op("tomadiff::local_plan", mutates_args=())
def local_plan(
    tokens: Tensor,
    index: Tensor,
    mask: Tensor,
    places: Tensor | None,
    groups: int,
    count: int,
    temperature: float,
    pull: float | None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A plan inside regions, as ``weights.choose_destinations`` and ``weights.weigh`` make it by facility location.

    Args:
        tokens: ``(B, N, C)`` in raster order.
        index: ``(R, L)`` raster index of every place.
        mask: ``(R, L)`` true for real tokens.
        places: ``(B, R, k)`` of destinations that are known; ``None`` chooses some.
        groups: of samples that share their destinations; sample ``s`` is of group ``s % groups``.
        count: ``k``, destinations per region.
        temperature: of the softmax.
        pull: of least squares towards the transpose, see ``unmerging.least_squares``; ``None`` takes the transpose.
        starts: as in :func:`merge`, for regions that keep the first of their ``places`` alone; ``None`` keeps all.

    Returns:
        ``places`` ``(B, R, k)``, ``merge`` ``(B, R, k, L)``, ``unmerge`` ``(B, R, L, k)``, ``mass`` ``(B, R, k)``, and
        ``near`` ``(B, R)``, what each region adds to the coverage of its sample.
    """
    from tomadiff.kernels.programs.local_plan import launch

    samples = tokens.shape[0]
    if samples % groups or (places is not None and groups != samples):
        raise ShapeError(f"{samples} samples cannot be planned in {groups} groups.")
    if starts is not None and places is None:
        raise SettingError("Regions keep some of the places that are known; local_choice gives them.")
    return launch(_rows(tokens), index, mask, places, groups, count, temperature, pull, starts)


@local_plan.register_fake
def _(
    tokens: Tensor,
    index: Tensor,
    mask: Tensor,  # noqa: ARG001 - as the real one
    places: Tensor | None,  # noqa: ARG001
    groups: int,  # noqa: ARG001
    count: int,
    temperature: float,  # noqa: ARG001
    pull: float | None,  # noqa: ARG001
    starts: Tensor | None = None,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    samples, (regions, length) = tokens.shape[0], index.shape
    return (
        index.new_empty(samples, regions, count),
        tokens.new_empty(samples, regions, count, length),
        tokens.new_empty(samples, regions, length, count),
        tokens.new_empty(samples, regions, count),
        tokens.new_empty(samples, regions, dtype=torch.float32),
    )


# ---------------------------------------------------------------------------------------------- local_choice
@custom_op("tomadiff::local_choice", mutates_args=())
def local_choice(tokens: Tensor, index: Tensor, mask: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """All places of every region in the order in which facility location chooses them, and what they are worth.

    Args:
        tokens: ``(B, N, C)`` in raster order.
        index: ``(R, L)`` raster index of every place.
        mask: ``(R, L)`` true for real tokens.
        groups: of samples that share their destinations; sample ``s`` is of group ``s % groups``.

    Returns:
        ``places`` and, as ``quota.worth`` says it, ``worth``, both ``(B, R, L)``.
    """
    from tomadiff.kernels.programs.local_plan import launch_choice

    if tokens.shape[0] % groups:
        raise ShapeError(f"{tokens.shape[0]} samples cannot be planned in {groups} groups.")
    return launch_choice(_rows(tokens), index, mask, groups)


@local_choice.register_fake
def _(tokens: Tensor, index: Tensor, mask: Tensor, groups: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001 - as above
    places = index.new_empty(tokens.shape[0], *index.shape)
    return places, tokens.new_empty(places.shape, dtype=torch.float32)


# ---------------------------------------------------------------------------------------------- merge
@custom_op("tomadiff::merge", mutates_args=())
def merge(tokens: Tensor, matrix: Tensor, index: Tensor, starts: Tensor | None = None, count: int = 0) -> Tensor:
    """Merge as ``MergePlan.merge`` does, reading tokens where they lie in raster order.

    Args:
        tokens: ``(B, N, C)``.
        matrix: ``(b, R, k, L)``, of the same dtype; ``B`` is a multiple of ``b``.
        index: ``(R, L)`` raster index of every place.
        starts: ``(b, R + 1)`` where the merged tokens of each region begin, and where the last ones end, for regions
            that keep only the first of their ``k``; ``None``: all of them.
        count: ``K``, how many merged tokens there are then.

    Returns:
        ``(B, K, C)``, ``K = R·k`` without ``starts``.
    """
    from tomadiff.kernels.programs.merge import launch_merge

    _require_match(tokens, matrix)
    return launch_merge(_rows(tokens), matrix.contiguous(), index, starts, _merged_count(matrix, starts, count))


@merge.register_fake
def _(
    tokens: Tensor,
    matrix: Tensor,
    index: Tensor,  # noqa: ARG001 - as the real one
    starts: Tensor | None = None,
    count: int = 0,
) -> Tensor:
    return tokens.new_empty(tokens.shape[0], _merged_count(matrix, starts, count), tokens.shape[2])


def _merged_count(matrix: Tensor, starts: Tensor | None, count: int) -> int:
    return matrix.shape[1] * matrix.shape[2] if starts is None else count


# ---------------------------------------------------------------------------------------------- unmerge_add
@custom_op("tomadiff::unmerge_add", mutates_args=())
def unmerge_add(
    merged: Tensor,
    matrix: Tensor,
    index: Tensor,
    mask: Tensor,
    count: int,
    residual: Tensor | None,
    starts: Tensor | None = None,
) -> Tensor:
    """``residual + unmerge(merged)`` as ``MergePlan.unmerge`` does, written in raster order.

    Args:
        merged: ``(B, K, C)``, ``K = R·k`` without ``starts``.
        matrix: ``(b, R, L, k)``, of the same dtype; ``B`` is a multiple of ``b``.
        index: ``(R, L)`` raster index of every place.
        mask: ``(R, L)`` true for real tokens.
        count: ``N``, tokens of the grid.
        residual: ``(B, N, C)`` or ``None`` for nothing to add.
        starts: as in :func:`merge`.

    Returns:
        ``(B, N, C)``, rounded once: sums and products are float32.
    """
    from tomadiff.kernels.programs.merge import launch_unmerge_add

    _require_match(merged, matrix)
    if starts is None:
        _require_kept(merged, matrix)
    there = None if residual is None else _rows(residual)
    return launch_unmerge_add(_rows(merged), matrix.contiguous(), index, mask, count, there, starts)


@unmerge_add.register_fake
def _(
    merged: Tensor,
    matrix: Tensor,  # noqa: ARG001 - as the real one
    index: Tensor,  # noqa: ARG001
    mask: Tensor,  # noqa: ARG001
    count: int,
    residual: Tensor | None,  # noqa: ARG001
    starts: Tensor | None = None,  # noqa: ARG001
) -> Tensor:
    return merged.new_empty(merged.shape[0], count, merged.shape[2])


def _rows(tokens: Tensor) -> Tensor:
    """Tokens whose channels lie side by side; samples and tokens may have any distance."""
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()


def _require_match(tokens: Tensor, matrix: Tensor) -> None:
    if tokens.dtype != matrix.dtype:
        raise ShapeError(f"Tokens are {tokens.dtype} and the plan is {matrix.dtype}; plan.to(dtype=…) changes it.")
    if tokens.shape[0] % matrix.shape[0]:
        raise ShapeError(f"A plan for {matrix.shape[0]} samples cannot serve a batch of {tokens.shape[0]}.")


def _require_kept(merged: Tensor, matrix: Tensor) -> None:
    keeps = matrix.shape[1] * matrix.shape[3]
    if merged.shape[1] != keeps:
        raise ShapeError(f"Got {merged.shape[1]} merged tokens for a plan that keeps {keeps}.")
