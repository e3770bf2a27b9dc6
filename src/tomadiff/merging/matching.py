"""Bipartite soft matching, the way ToMeSD and ToFu merge: gather, average, copy back.

One destination stands in every window of the grid; the sources most like a destination join it, the others stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tomadiff.errors import ShapeError
from tomadiff.merging.grid import Grid
from tomadiff.merging.plan import Plan, Share, by_group, group_count, repeat_to

Fuse = Literal["mean", "mlerp", "prune"]


@dataclass(eq=False)
class MatchPlan(Plan):
    """Tokens that stay, and sources that join one of them.

    Attributes:
        shape: the grid.
        stay: ``(B, K)`` raster index of the tokens that stay: unmatched sources first, then destinations.
        sources: ``(B, r)`` raster index of the tokens that join another.
        targets: ``(B, r)`` place among the merged tokens that each source joins.
        home: ``(B, N)`` place among the merged tokens that each token is restored from.
        coverage: see :class:`~tomadiff.merging.plan.Plan`.
        shared: see :class:`~tomadiff.merging.plan.Plan`.
        fuse: how joined tokens become one: their ``"mean"``, the mean with the largest of their norms
            (``"mlerp"``), or the destination alone (``"prune"``).
    """

    shape: Grid
    stay: Tensor
    sources: Tensor
    targets: Tensor
    home: Tensor
    coverage: Tensor
    shared: bool
    fuse: Fuse = "mean"

    @property
    def grid(self) -> Grid:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return self.shape

    @property
    def kept(self) -> int:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return self.stay.shape[1]

    @property
    def destinations(self) -> Tensor:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return self.stay

    @property
    def state(self) -> list[Tensor]:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return [self.stay, self.sources, self.targets, self.home, self.coverage]

    def renew(self, state: Sequence[Tensor]) -> None:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        self.stay, self.sources, self.targets, self.home, self.coverage = state

    def fits(self, other: Plan) -> bool:
        """See :class:`~tomadiff.merging.plan.Plan`."""
        return isinstance(other, MatchPlan) and self.fuse == other.fuse and super().fits(other)

    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` → ``(B, K, C)``."""
        kept = _rows(tokens, self.stay)
        if self.fuse == "prune" or self.sources.shape[1] == 0:
            return kept
        joining, targets = _rows(tokens, self.sources), repeat_to(self.targets, tokens.shape[0])
        mean = kept.scatter_reduce(1, targets[..., None].expand_as(joining), joining, reduce="mean")
        return mean if self.fuse == "mean" else _with_largest_norm(mean, kept, joining, targets)

    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K, C)`` → ``(B, N, C)``: a copy of what each token joined."""
        if merged.shape[1] != self.kept:
            raise ShapeError(f"Got {merged.shape[1]} merged tokens for a plan that keeps {self.kept}.")
        return _rows(merged, self.home)


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    """``(B, N, C)``, ``(b, n)`` → ``(B, n, C)``."""
    index = repeat_to(index, tokens.shape[0])
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


def _with_largest_norm(mean: Tensor, kept: Tensor, joining: Tensor, targets: Tensor) -> Tensor:
    """Averaging shortens tokens; give each mean the largest norm among the tokens it stands for."""
    norms = torch.linalg.vector_norm(kept, dim=-1)
    norms = norms.scatter_reduce(1, targets, torch.linalg.vector_norm(joining, dim=-1), reduce="amax")
    length = torch.linalg.vector_norm(mean, dim=-1).clamp_min(torch.finfo(mean.dtype).tiny)
    return torch.mul(mean, (norms / length)[..., None])


# ---------------------------------------------------------------------------------------------- matching
def split_windows(
    grid: Grid, stride: tuple[int, int], generator: torch.Generator | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Raster indices of sources and destinations: one destination per ``stride`` window ``(x, y)``.

    Without ``generator`` it is each window's top left token. Rows and columns that no whole window covers hold
    sources only. Windows never cross frames, and every frame has the same pattern.
    """
    wide, high = min(stride[0], grid.width), min(stride[1], grid.height)
    rows, columns = grid.height // high, grid.width // wide
    if generator is None:
        chosen = torch.zeros(rows, columns, 1, dtype=torch.long)
    else:
        random = torch.randint(high * wide, (rows, columns, 1), generator=generator, device=generator.device)
        chosen = random.to(device)
    marks = torch.zeros(rows, columns, high * wide, dtype=torch.long, device=device)
    marks.scatter_(2, chosen.to(device), -1)
    marks = marks.view(rows, columns, high, wide).transpose(1, 2).reshape(rows * high, columns * wide)
    frame = torch.zeros(grid.height, grid.width, dtype=torch.long, device=device)
    frame[: rows * high, : columns * wide] = marks
    order = frame.repeat(grid.frames, 1).flatten().argsort()  # destinations are −1, so they come first
    count = rows * columns * grid.frames
    return order[count:], order[:count]


def match(
    tokens: Tensor,
    grid: Grid,
    ratio: float,
    stride: tuple[int, int],
    *,
    generator: torch.Generator | None = None,
    share: Share = "sample",
    passes: int = 1,
    fuse: Fuse = "mean",
) -> MatchPlan:
    """Match the sources of ``tokens`` ``(B, N, C)`` that are most like a destination to it.

    Samples that share destinations are matched by the mean of their cosines.
    """
    batch, groups = tokens.shape[0], group_count(tokens.shape[0], share, passes)
    source, target = split_windows(grid, stride, generator, tokens.device)
    units = _units(tokens)
    scores = by_group(torch.matmul(units[:, source], units[:, target].transpose(1, 2)), groups).mean(0)  # (G, src, dst)
    best, nearest = scores.max(dim=-1)
    order = best.argsort(dim=-1, descending=True)
    joined = min(int(grid.tokens * ratio), len(source))
    leaving, staying = order[:, :joined], order[:, joined:]
    targets = staying.shape[1] + nearest.gather(1, leaving)
    stay = torch.cat([source[staying], target.expand(groups, -1)], dim=1)
    return MatchPlan(
        grid,
        repeat_to(stay, batch),
        repeat_to(source[leaving], batch),
        repeat_to(targets, batch),
        repeat_to(_home(grid, stay, source[leaving], targets), batch),
        repeat_to((((best + 1) / 2).gather(1, leaving).sum(-1) + stay.shape[1]) / grid.tokens, batch),
        shared=groups == 1,
        fuse=fuse,
    )


def _units(tokens: Tensor) -> Tensor:
    """Tokens of length one; those that have no direction are zero.

    Divided before they are multiplied, unlike :func:`tomadiff.merging.select.cosines`: that is how the ``tomesd``
    package does it, and nearly equal scores have to fall the same way.
    """
    rows = tokens.float()
    units: Tensor = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return units.nan_to_num(0.0, 0.0, 0.0)


def _home(grid: Grid, stay: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """``(G, N)``: where each raster token finds itself among the merged ones."""
    home = torch.empty(stay.shape[0], grid.tokens, dtype=torch.long, device=stay.device)
    home.scatter_(1, stay, torch.arange(stay.shape[1], device=stay.device).expand_as(stay))
    return home.scatter_(1, sources, targets)
