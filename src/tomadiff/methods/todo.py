"""ToDo, token downsampling (arXiv 2402.13573): queries stay, keys and values of self-attention are thinned out.

Every ``factor``-th row and column of the grid supplies keys and values (nearest neighbour, as in the paper), so the
output keeps its length and nothing is unmerged. In joint attention only the image's keys and values are thinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from tomadiff.errors import SettingError
from tomadiff.merging.grid import Grid
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Levels, Method
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.settings import Ratio, whole

_NEVER_AGAIN = 10**9


@dataclass(eq=False)
class PoolPlan(Plan):
    """Which tokens supply keys and values.

    Attributes:
        shape: the grid.
        index: ``(1, K)`` raster index of the tokens that do.
        nearest: ``(1, N)`` which of them stands nearest to each token, for images.
        coverage: all ones: no query is lost.
        shared: always true.
    """

    shape: Grid
    index: Tensor
    nearest: Tensor
    coverage: Tensor
    shared: bool = True

    @property
    def grid(self) -> Grid:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return self.shape

    @property
    def kept(self) -> int:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return self.index.shape[1]

    @property
    def destinations(self) -> Tensor:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return self.index

    @property
    def state(self) -> list[Tensor]:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return [self.index, self.nearest, self.coverage]

    def renew(self, state: Sequence[Tensor]) -> None:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        self.index, self.nearest, self.coverage = state

    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` → ``(B, K, C)``: the tokens that supply keys and values."""
        return tokens.index_select(1, self.index[0])

    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K, C)`` → ``(B, N, C)``: a copy of the nearest; attention itself needs none."""
        return merged.index_select(1, self.nearest[0])


@dataclass(frozen=True)
class ToDo(Method):
    """Token downsampling, with the defaults of its paper: factor 2 at the finest level.

    Attributes:
        factor: every how many rows and columns supply keys and values; it sets ``ratio`` to ``1 − 1/factor²``.
    """

    _: KW_ONLY
    factor: Annotated[int, whole(2, 1024)] = 2
    ratio: Ratio = 0.75
    levels: Levels | None = (0,)
    merge_cross_attention: bool = False
    merge_feed_forward: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ratio", 1 - 1 / self.factor**2)
        if self.span != "op" or self.merge_cross_attention or self.merge_feed_forward or not self.merge_attention:
            raise SettingError("ToDo thins out keys and values of self-attention and nothing else; use another method.")

    @property
    def pools(self) -> bool:
        """See :class:`Method`."""
        return True

    @property
    def families(self) -> tuple[str, ...]:
        """Families whose attention is known well enough to give it fewer keys than queries."""
        return ("unet", "pixart", "sd3", "flux")

    @property
    def schedule(self) -> Schedule:
        """The grid alone decides."""
        return Schedule(destinations_every=_NEVER_AGAIN, weights_every=_NEVER_AGAIN)

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,  # noqa: ARG002 - the factor decides
        passes: int = 1,  # noqa: ARG002 - looks at no token
        generator: torch.Generator | None = None,  # noqa: ARG002
        depth: float = 1.0,  # noqa: ARG002
    ) -> PoolPlan:
        """The tokens of ``grid`` that supply keys and values; ``tokens`` ``(B, N, C)`` tell only where."""
        rows, columns = (torch.arange(0, size, self.factor) for size in (grid.height, grid.width))
        frames = torch.arange(grid.frames)[:, None, None] * grid.height * grid.width
        index = (frames + rows[:, None] * grid.width + columns).flatten()
        nearest = torch.arange(len(index)).view(grid.frames, len(rows), len(columns))
        full = nearest.repeat_interleave(self.factor, 1)[:, : grid.height]
        full = full.repeat_interleave(self.factor, 2)[:, :, : grid.width]
        device = tokens.device
        ones = torch.ones(1, device=device)
        return PoolPlan(grid, index[None].to(device), full.reshape(1, -1).to(device), ones)
