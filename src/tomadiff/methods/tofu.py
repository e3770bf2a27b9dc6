"""ToFu, token fusion (arXiv 2312.01026): merge where a layer is linear, prune where it does not.

Choices that the paper leaves open, and how they are made here:

- Matching is ToMeSD's, with its stride and random pattern.
- Pruning keeps a destination as it is and drops the sources that would join it; unmerging copies, as after merging.
- Depth: the first half of the blocks prunes (:attr:`ToFu.prune` is the share).
- MLERP gives the mean of the joined tokens the largest of their norms.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from tomadiff.merging.grid import Grid
from tomadiff.merging.matching import Fuse, MatchPlan
from tomadiff.methods.tomesd import ToMeSD
from tomadiff.utils.settings import Rule

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

    def plan(self, tokens: Tensor, grid: Grid, *, depth: float = 1.0, **rest: Any) -> MatchPlan:
        """Match as ToMeSD does, and prune or merge by the block's ``depth``."""
        plan = super().plan(tokens, grid, depth=depth, **rest)
        return replace(plan, fuse="prune" if depth < self.prune else self.fuse)
