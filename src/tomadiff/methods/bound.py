"""The speed limit: merging and unmerging of ToMA's shapes by fixed random matrices, and nothing else.

What the ToMA paper calls its lower bound. Its images are meaningless; its time is what no method of these shapes
can beat.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from tomadiff.merging.grid import AnyRegions, ByRegion, Grid, Layout, Tiles
from tomadiff.merging.plan import MergePlan
from tomadiff.merging.weights import kept_per_region
from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Schedule

_NEVER_AGAIN = 10**9


@dataclass(frozen=True)
class Bound(Method):
    """How fast merging could be.

    Attributes:
        regions: ToMA's regions, which set the shapes.
    """

    _: KW_ONLY
    regions: AnyRegions = Tiles(4)  # noqa: RUF009 - frozen, so one instance may serve all

    @property
    def schedule(self) -> Schedule:
        """Made once per image."""
        return Schedule(destinations_every=_NEVER_AGAIN, weights_every=_NEVER_AGAIN)

    def token_order(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Layout | None:  # noqa: ARG002
        """See :meth:`Method.token_order`: tiles that cut the grid evenly, which raster order tears apart."""
        layout = self.regions.layout(grid, device)
        return layout if layout.tile is not None else None

    def by_region(self) -> Bound:
        """See :meth:`Method.by_region`."""
        return replace(self, regions=ByRegion(self.regions))

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,
        passes: int = 1,  # noqa: ARG002 - looks at no token
        generator: torch.Generator | None = None,  # noqa: ARG002
        depth: float = 1.0,  # noqa: ARG002
    ) -> MergePlan:
        """Random matrices of the right shapes for ``tokens`` ``(B, N, C)``."""
        layout = self.regions.layout(grid, tokens.device)
        kept = kept_per_region(self.ratio if ratio is None else ratio, layout)
        own = torch.Generator().manual_seed(self.seed)
        batch = tokens.shape[0]
        merge = torch.rand(batch, layout.regions, kept, layout.length, generator=own).to(tokens.device)
        merge = (merge / merge.sum(-1, keepdim=True)).to(tokens.dtype)
        first = torch.arange(kept, device=tokens.device).expand(batch, layout.regions, -1).contiguous()
        sizes = torch.full((batch, layout.regions * kept), grid.tokens / (layout.regions * kept))
        nothing = torch.zeros(batch, device=tokens.device)
        unmerge = merge.transpose(-1, -2).contiguous()
        return MergePlan(layout, first, merge, unmerge, sizes.to(tokens), nothing, True)
