"""ToFu, token fusion (arXiv 2312.01026): merge where a layer answers linearly, prune where it does not.

Choices that the paper leaves open, and how they are made here:

- Matching is ToMeSD's, with its stride and random pattern.
- Pruning keeps a destination as it is and drops the sources that would join it; unmerging copies, as after merging.
- Depth: the first half of the blocks prunes (:attr:`ToFu.prune` is the share).
- Linearity: :func:`tomadiff.measured.block_linearity` measures it per block, :func:`tomadiff.measured.share_to_prune`
  turns it into that share: blocks prune up to the first that answers linearly enough.
- MLERP gives the mean of the joined tokens the largest of their norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from tomadiff.allotment import AllottedPlan, DensePlan
from tomadiff.grid import Grid
from tomadiff.matching import Fuse, MatchPlan
from tomadiff.methods.toma import ToMA
from tomadiff.methods.tomesd import ToMeSD
from tomadiff.settings import Rule
from tomadiff.unmerging import Unmerge

Pruned = Annotated[float, Rule("it is a share of the blocks, from 0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True)
class ToFu(ToMeSD):
    """Token fusion.

    Attributes:
        prune: share of first blocks that prune; the rest merges.
        fuse: how the rest merges: ``"mlerp"`` keeps norms, ``"mean"`` does not.
    """

    _: KW_ONLY
    prune: Pruned = 0.5
    fuse: Fuse = "mlerp"

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,
        passes: int = 1,
        generator: torch.Generator | None = None,
        depth: float = 1.0,
    ) -> MatchPlan:
        """Match as ToMeSD does, and prune or merge by the block's ``depth``."""
        plan = super().plan(tokens, grid, ratio=ratio, passes=passes, generator=generator, depth=depth)
        return replace(plan, fuse="prune" if depth < self.prune else self.fuse)


@dataclass(frozen=True)
class ToMAToFu(ToMA):
    """Prune or merge on ToMA's destinations, which its paper calls possible and does not show.

    Attributes:
        prune: share of first blocks whose destinations keep their own value; the rest merges.
    """

    _: KW_ONLY
    prune: Pruned = 0.5
    unmerge: Unmerge = "transpose"

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,
        passes: int = 1,
        generator: torch.Generator | None = None,
        depth: float = 1.0,
    ) -> DensePlan:
        """Plan as ToMA does, and prune or merge by the block's ``depth``."""
        plan = super().plan(tokens, grid, ratio=ratio, passes=passes, generator=generator, depth=depth)
        return _pruned(plan) if depth < self.prune else plan

    def reweigh(self, plan: DensePlan, tokens: Tensor, *, depth: float = 1.0) -> DensePlan:
        """See :class:`ToMA`."""
        fresh = super().reweigh(plan, tokens, depth=depth)
        return _pruned(fresh) if depth < self.prune else fresh


def _pruned(plan: DensePlan) -> DensePlan:
    """The same plan, except that every destination stands for its own value alone."""
    whole = plan.whole if isinstance(plan, AllottedPlan) else plan
    own = torch.zeros_like(whole.merge_matrix).scatter_(-1, whole.places[..., None], 1.0)
    pruned = replace(whole, merge_matrix=own)
    return replace(plan, whole=pruned) if isinstance(plan, AllottedPlan) else pruned


def linearity(layer: Callable[[Tensor], Tensor], tokens: Tensor, *, seed: int = 0) -> float:
    """How linearly ``layer`` answers a blend of tokens ``(B, N, C)``: 1 is perfectly, 0 is not at all.

    Every token is blended half and half with another one drawn at random, and the answer to the blend is compared
    with the blend of the answers, by cosine. The paper prunes where this is low.
    """
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(seed)).to(tokens.device)
    with torch.no_grad():
        answer, blended = layer(tokens), layer((tokens + tokens[:, order]) / 2)
        expected = (answer + answer[:, order]) / 2
        return float(torch.nn.functional.cosine_similarity(blended, expected, dim=-1).mean())
