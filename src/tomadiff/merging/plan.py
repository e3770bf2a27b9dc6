"""Plans: how many tokens become few, and few become many again.

A :class:`Plan` is what sites use; :class:`MergePlan` is the kind whose merging and unmerging are batched matrix
products. :mod:`tomadiff.merging.weights` makes them, :mod:`tomadiff.merging.matching` makes another kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from tomadiff import kernels
from tomadiff.errors import SettingError, ShapeError, require_choice
from tomadiff.merging.grid import Grid, Layout, Stripes

Share = Literal["sample", "prompt", "batch"]


class Plan(ABC):
    """How ``N`` tokens of a grid become ``K``, and ``K`` become ``N`` again.

    Attributes:
        coverage: ``(B,)`` mean similarity of a token to its nearest destination, from 0 to 1.
        shared: true if all samples of a batch have the same destinations.
    """

    coverage: Tensor
    shared: bool

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """The grid the plan is for."""

    @property
    @abstractmethod
    def kept(self) -> int:
        """``K``, tokens after merging."""

    @property
    @abstractmethod
    def destinations(self) -> Tensor:
        """``(B, K)`` raster index of every destination, in the order of merged tokens."""

    @property
    @abstractmethod
    def state(self) -> list[Tensor]:
        """The tensors that change when a plan is renewed, in a fixed order; see :meth:`renew`."""

    @abstractmethod
    def renew(self, state: Sequence[Tensor]) -> None:
        """Take over the :attr:`state` of another plan of the same shapes (compiled code does this in place)."""

    def with_layout(self, layout: Layout) -> Plan:  # noqa: ARG002 - for those who look
        """The same plan for tokens in the order of ``layout``; default: a plan that only knows raster order."""
        return self

    @abstractmethod
    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` → ``(B, K, C)``."""

    @abstractmethod
    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K, C)`` → ``(B, N, C)``."""

    def unmerge_add(self, merged: Tensor, residual: Tensor) -> Tensor:
        """``residual + unmerge(merged)``, ``(B, N, C)``."""
        return residual + self.unmerge(merged)

    @property
    def tokens(self) -> int:
        """``N``, tokens before merging."""
        return self.grid.tokens

    @property
    def batch(self) -> int:
        """Samples the plan was made for; it serves every batch that repeats them."""
        return self.state[0].shape[0]

    @property
    def realised_ratio(self) -> float:
        """Share of tokens that are really removed; rounding to whole tokens moves it from the wish."""
        return 1 - self.kept / self.tokens

    @property
    def nbytes(self) -> int:
        """Bytes held by the plan's tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state)

    def fits(self, other: Plan) -> bool:
        """Whether :meth:`renew` may take over the state of ``other``."""
        same = len(self.state) == len(other.state) and all(
            mine.shape == new.shape and mine.dtype == new.dtype and mine.device == new.device
            for mine, new in zip(self.state, other.state, strict=False)
        )
        return same and type(self) is type(other) and self.grid == other.grid and self.shared == other.shared

    def gather(self, table: Tensor, dim: int = 0) -> Tensor:
        """Rows of a positional table that belong to the destinations.

        ``dim`` is the table's token axis. A table with a batch axis before it (``(B or 1, …, N, …)``, ``dim > 0``)
        gives each sample its own rows; a table without one needs destinations shared over the batch.
        """
        if table.shape[dim] != self.tokens:
            raise ShapeError(f"A table with {table.shape[dim]} rows does not fit a grid of {self.tokens} tokens.")
        rows = self.destinations
        if self.shared or rows.shape[0] == 1:
            return table.index_select(dim, rows[0])
        if dim % table.dim() == 0:
            raise SettingError("A table without batch axis needs one set of destinations: use share='batch'.")
        each = zip(table.expand(rows.shape[0], *table.shape[1:]), rows, strict=True)
        return torch.stack([sample.index_select(dim % table.dim() - 1, own) for sample, own in each])


@dataclass(frozen=True)
class Destinations:
    """The kept tokens of a grid, and the regions inside which others merge into them.

    Attributes:
        layout: the regions of the weights (``R`` of at most ``L`` tokens).
        local_index: ``(B, R, k)`` place of each destination inside its region.
        shared: true if all samples of a batch have the same destinations.
        rows: ``(B, K)`` which of the ``R·k`` are kept, in rising order; ``None``: all of them.
    """

    layout: Layout
    local_index: Tensor = field(repr=False)
    shared: bool
    rows: Tensor | None = field(default=None, repr=False)

    def repeated(self, batch: int) -> Destinations:
        """For a batch that repeats these samples."""
        rows = None if self.rows is None else repeat_to(self.rows, batch)
        return replace(self, local_index=repeat_to(self.local_index, batch), rows=rows)


@dataclass(eq=False)
class MergePlan(Plan):
    """How ``N`` tokens of a grid become ``K``, and ``K`` become ``N`` again.

    Attributes:
        layout: the regions (``R`` of at most ``L`` tokens) that tokens merge in.
        local_index: ``(B, R, k)`` place of each destination inside its region.
        merge_matrix: ``(B, R, k, L)`` rows sum to one.
        unmerge_matrix: ``(B, R, L, k)``.
        sizes: ``(B, K)`` how many tokens each merged token stands for.
        coverage: ``(B,)`` mean similarity of a token to its nearest destination, from 0 to 1.
        shared: true if all samples of a batch have the same destinations.
        fused: whether to merge and unmerge with kernels made for GPUs; settled here, outside of compiled code.
    """

    layout: Layout
    local_index: Tensor
    merge_matrix: Tensor
    unmerge_matrix: Tensor
    sizes: Tensor
    coverage: Tensor
    shared: bool
    fused: bool = False

    @classmethod
    def identity(
        cls, grid: Grid, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> MergePlan:
        """The plan that changes nothing: every token is its own destination, in raster order."""
        layout = Stripes(1).layout(grid, device)
        first = torch.zeros(1, grid.tokens, 1, dtype=torch.long, device=device)
        ones = torch.ones(1, grid.tokens, 1, 1, dtype=dtype, device=device)
        return cls(layout, first, ones, ones.clone(), ones.view(1, -1).clone(), torch.ones(1, device=device), True)

    @property
    def grid(self) -> Grid:
        """The grid the plan is for."""
        return self.layout.grid

    @property
    def chosen(self) -> Destinations:
        """The destinations alone, to keep while weights are renewed."""
        return Destinations(self.layout, self.local_index, self.shared)

    @property
    def destinations(self) -> Tensor:
        """``(B, K)`` raster index of every destination, in the order of merged tokens."""
        index = self.layout.index.expand(*self.local_index.shape[:2], -1)
        return index.gather(2, self.local_index).flatten(1)

    @property
    def per_region(self) -> int:
        """``k``, destinations per region."""
        return self.local_index.shape[-1]

    @property
    def kept(self) -> int:
        """``K``, tokens after merging."""
        return self.layout.regions * self.per_region

    @property
    def state(self) -> list[Tensor]:
        """The tensors that change when a plan is renewed, in a fixed order; see :meth:`renew`."""
        return [self.local_index, self.merge_matrix, self.unmerge_matrix, self.sizes, self.coverage]

    def renew(self, state: Sequence[Tensor]) -> None:
        """Take over the :attr:`state` of another plan of the same shapes (compiled code does this in place)."""
        self.local_index, self.merge_matrix, self.unmerge_matrix, self.sizes, self.coverage = state

    def with_layout(self, layout: Layout) -> MergePlan:
        """See :meth:`Plan.with_layout`: the same regions, which lie elsewhere."""
        return replace(self, layout=layout)

    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` → ``(B, K, C)``: weighted averages, region by region."""
        if self.fits_kernel(tokens, self.tokens):
            return self.merge_fused(tokens)
        parts = self.layout.split(tokens)
        merged = torch.matmul(_fit(self.merge_matrix, parts.shape[0]), parts)
        return merged.reshape(parts.shape[0], self.kept, parts.shape[-1])

    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K, C)`` → ``(B, N, C)``: every token receives from the destinations it merged into."""
        layout = self.layout
        if merged.shape[1] != self.kept:
            raise ShapeError(f"Got {merged.shape[1]} merged tokens for a plan that keeps {self.kept}.")
        if self.fits_kernel(merged, self.kept):
            return self.unmerge_fused(merged, None)
        parts = merged.reshape(merged.shape[0], layout.regions, -1, merged.shape[-1])
        return layout.join(torch.matmul(_fit(self.unmerge_matrix, parts.shape[0]), parts))

    def unmerge_add(self, merged: Tensor, residual: Tensor) -> Tensor:
        """See :meth:`Plan.unmerge_add`."""
        if self.fits_kernel(merged, self.kept, residual):
            return self.unmerge_fused(merged, residual)
        return super().unmerge_add(merged, residual)

    def merge_fused(self, tokens: Tensor, starts: Tensor | None = None, count: int = 0) -> Tensor:
        """Merge by a kernel; for ``starts`` and ``count`` see :func:`tomadiff.kernels.merge`."""
        merged: Tensor = kernels.merge(tokens, self.merge_matrix, self.layout.index, starts, count)
        return merged

    def unmerge_fused(self, merged: Tensor, residual: Tensor | None, starts: Tensor | None = None) -> Tensor:
        """Unmerge by a kernel, and add what is there."""
        matrix, layout = self.unmerge_matrix, self.layout
        tokens: Tensor = kernels.unmerge_add(merged, matrix, layout.index, layout.mask, self.tokens, residual, starts)
        return tokens

    def fits_kernel(self, tokens: Tensor, count: int, residual: Tensor | None = None) -> bool:
        """Whether kernels can merge or unmerge ``tokens``, of which there should be ``count``.

        Other shapes get torch's error; other dtypes occur only under autocast, which knows torch's products.

        Kernels have no gradients. Sites never merge where some are wanted, but a plan may be used alone.
        """
        fits = self.fused and tokens.shape[1] == count and tokens.dtype == self.merge_matrix.dtype
        if residual is not None:
            fits = fits and residual.dtype == tokens.dtype and not _wants_grad(residual)
        return fits and not _wants_grad(tokens) and not _wants_grad(self.merge_matrix)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> MergePlan:
        """The same plan on another device, with its matrices in another dtype."""
        layout, tables = self.layout, ("index", "mask", "inverse")
        moved = replace(layout, **{name: getattr(layout, name).to(device) for name in tables})
        return type(self)(
            moved,
            self.local_index.to(device),
            self.merge_matrix.to(device, dtype),
            self.unmerge_matrix.to(device, dtype),
            self.sizes.to(device, dtype),
            self.coverage.to(device),
            self.shared,
            self.fused and moved.index.device.type == layout.index.device.type,
        )

    def __repr__(self) -> str:
        layout = self.layout
        return (
            f"{type(self).__name__}({self.grid} tokens: {self.tokens} → {self.kept} "
            f"({self.realised_ratio:.1%} merged away), {layout.regions} regions of {layout.length}, "
            f"batch {self.batch}, coverage {self.coverage.mean().item():.4f}, "
            f"{self.nbytes / 1024:.0f} KiB {self.merge_matrix.dtype})"
        )


def group_count(batch: int, share: Share, passes: int) -> int:
    """How many groups of samples share their destinations."""
    require_choice("share", share, ("sample", "prompt", "batch"))
    if share == "batch":
        return 1
    if share == "sample":
        return batch
    if batch % passes:
        raise ShapeError(f"A batch of {batch} cannot hold {passes} guidance passes of equal size.")
    return batch // passes


def by_group(samples: Tensor, groups: int) -> Tensor:
    """``(B, …)`` → ``(B/G, G, …)``: samples ``g, g + G, …`` form group ``g``, as guidance stacks its passes."""
    return samples.reshape(samples.shape[0] // groups, groups, *samples.shape[1:])


def _wants_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _fit(matrix: Tensor, batch: int) -> Tensor:
    """A plan for one sample serves any batch as it is (matmul broadcasts); others are repeated."""
    return matrix if matrix.shape[0] == 1 else repeat_to(matrix, batch)


def repeat_to(tensor: Tensor, batch: int) -> Tensor:
    """Repeat the samples of ``(b, …)`` to a batch of a multiple of ``b``: ``[a, b]`` → ``[a, b, a, b]``."""
    have = tensor.shape[0]
    if have == batch:
        return tensor
    if batch % have:
        raise ShapeError(f"A plan for {have} samples cannot serve a batch of {batch}.")
    return tensor.repeat(batch // have, *[1] * (tensor.dim() - 1))
