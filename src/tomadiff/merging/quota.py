"""One number of destinations for a whole grid, dealt out to its regions by what they gain from them.

The paper keeps equally many tokens in every region, in a plain sky as in a face. Here regions share one number. Greedy
choices are nested and their gains only fall, so the greedy choice over the whole grid (with regions that know nothing
of each other) is no other than the largest gains of all regions. Shapes stay fixed: every region is merged into as many
candidates as it has tokens, small dense products as ever, and a gather takes the ``K`` of them that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tomadiff.errors import ShapeError
from tomadiff.merging.grid import Grid, Layout
from tomadiff.merging.plan import Destinations, MergePlan, Plan


def kept_in_all(ratio: float, layout: Layout) -> int:
    """Destinations of a whole grid for ``ratio``: at least one for every region."""
    return max(layout.regions, round((1 - ratio) * layout.grid.tokens))


def worth(gains: Tensor, real: Tensor, usable: Tensor) -> Tensor:
    """``(G, R, k)`` what every candidate is worth keeping; it never rises along the last axis.

    Args:
        gains: ``(G, R, k)`` of the candidates of every region, in the order they were chosen.
        real: ``(G, R, k)`` false for padding, which is never kept.
        usable: ``(G, R, k)`` false for tokens that are kept only if nothing else is left.
    """
    found = torch.where(usable, gains, torch.finfo(gains.dtype).min)
    found[..., 0] = float("inf")  # every region keeps one, or its tokens would have nowhere to go
    return torch.where(real, found, float("-inf")).cummin(-1).values  # gains may rise by what was rounded


def most_worth(value: Tensor, count: int) -> Tensor:
    """``(G, count)`` the candidates of all regions to keep, in rising order, by their :func:`worth` ``(G, R, k)``.

    Of every region, these are the first ones.
    """
    best = value.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return best.sort(dim=-1).values


@dataclass(eq=False)
class AllottedPlan(Plan):
    """A plan that keeps some of the candidates of another.

    Attributes:
        whole: merges every region into all of its candidates.
        rows: ``(B, K)`` the candidates that are kept, in rising order.
        take: ``(B·K,)`` the same, counted through all samples.
        give: ``(B·R·k,)`` for every candidate the merged token that stands for it: its own, or one of the same region,
            whose weight there is zero.
        starts: ``(B, R + 1)`` where the merged tokens of each region begin, and where the last ones end; for kernels.
    """

    whole: MergePlan
    rows: Tensor
    take: Tensor
    give: Tensor
    starts: Tensor

    @classmethod
    def of(cls, whole: MergePlan, rows: Tensor, starts: Tensor | None = None) -> AllottedPlan:
        """Keep ``rows`` ``(B, K)`` of the candidates of ``whole``; of every region, these are the first ones."""
        kept = is_kept(rows, whole.kept)
        sample = torch.arange(rows.shape[0], device=rows.device)[:, None]
        take, give = rows + sample * whole.kept, kept.cumsum(1) - 1 + sample * rows.shape[1]
        starts = starts_of(rows, whole.layout.regions, whole.per_region) if starts is None else starts
        return cls(whole, rows, take.flatten(), give.flatten(), starts)

    @property
    def grid(self) -> Grid:
        """See :class:`Plan`."""
        return self.whole.grid

    @property
    def kept(self) -> int:
        """See :class:`Plan`."""
        return self.rows.shape[1]

    @property
    def layout(self) -> Layout:
        """The regions that tokens merge in."""
        return self.whole.layout

    @property
    def chosen(self) -> Destinations:
        """The destinations alone, to keep while weights are renewed."""
        return replace(self.whole.chosen, rows=self.rows)

    @property
    def destinations(self) -> Tensor:
        """See :class:`Plan`."""
        return self.whole.destinations.gather(1, self.rows)

    @property
    def sizes(self) -> Tensor:
        """``(B, K)`` how many tokens each merged token stands for."""
        return self.whole.sizes.gather(1, self.rows)

    @property
    def coverage(self) -> Tensor:  # type: ignore[override] # there it is a field
        """See :class:`Plan`."""
        return self.whole.coverage

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """See :class:`Plan`."""
        return self.whole.shared

    @property
    def state(self) -> list[Tensor]:
        """See :class:`Plan`."""
        return [*self.whole.state, self.rows, self.take, self.give, self.starts]

    def renew(self, state: Sequence[Tensor]) -> None:
        """See :class:`Plan`."""
        *inner, self.rows, self.take, self.give, self.starts = state
        self.whole.renew(inner)

    def with_layout(self, layout: Layout) -> AllottedPlan:
        """See :class:`Plan`."""
        return replace(self, whole=self.whole.with_layout(layout))

    def merge(self, tokens: Tensor) -> Tensor:
        """See :class:`Plan`."""
        if self.whole.fits_kernel(tokens, self.tokens):
            return self.whole.merge_fused(tokens, self.starts, self.kept)
        return self._gather(self.whole.merge(tokens), self.take)

    def unmerge(self, merged: Tensor) -> Tensor:
        """See :class:`Plan`."""
        if self.whole.fits_kernel(merged, self.kept):
            return self.whole.unmerge_fused(merged, None, self.starts)
        return self.whole.unmerge(self._spread(merged))

    def unmerge_add(self, merged: Tensor, residual: Tensor) -> Tensor:
        """See :class:`Plan`."""
        if self.whole.fits_kernel(merged, self.kept, residual):
            return self.whole.unmerge_fused(merged, residual, self.starts)
        return self.whole.unmerge_add(self._spread(merged), residual)

    def _spread(self, merged: Tensor) -> Tensor:
        """``(B, K, C)`` → ``(B, R·k, C)``: what stands for every candidate."""
        if merged.shape[1] != self.kept:
            raise ShapeError(f"Got {merged.shape[1]} merged tokens for a plan that keeps {self.kept}.")
        return self._gather(merged, self.give)

    def _gather(self, values: Tensor, index: Tensor) -> Tensor:
        """Rows of ``values`` ``(B, n, C)``, whole ones at a time; ``index`` counts through all samples."""
        batch, count, width = values.shape
        own = self.rows.shape[0]
        if batch != own:
            turn = torch.arange(batch // own, device=index.device)[:, None] * (own * count)
            index = (index + turn).flatten()
        return values.reshape(batch * count, width).index_select(0, index).view(batch, -1, width)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> AllottedPlan:
        """The same plan on another device, with its matrices in another dtype."""
        return AllottedPlan.of(self.whole.to(device, dtype), self.rows.to(device))

    def __repr__(self) -> str:
        layout = self.layout
        return (
            f"AllottedPlan({self.grid} tokens: {self.tokens} → {self.kept} ({self.realised_ratio:.1%} merged away), "
            f"{layout.regions} regions of {layout.length} share them, batch {self.batch}, "
            f"coverage {self.coverage.mean().item():.4f}, {self.nbytes / 1024:.0f} KiB)"
        )


DensePlan = MergePlan | AllottedPlan
"""Plans whose merging is a dense product: of all destinations of a region, or of those that it was allotted."""


def starts_of(rows: Tensor, regions: int, candidates: int) -> Tensor:
    """``(B, K)`` → ``(B, R + 1)``: how many ``rows`` come before those of each region, and how many there are."""
    edges = torch.arange(regions + 1, device=rows.device) * candidates
    return torch.searchsorted(rows, edges.expand(rows.shape[0], -1).contiguous())


def is_kept(rows: Tensor, candidates: int) -> Tensor:
    """``(B, K)`` → ``(B, candidates)``: which of them are among ``rows``."""
    none = torch.zeros(rows.shape[0], candidates, dtype=torch.bool, device=rows.device)
    return none.scatter(1, rows, True)
