"""ToMeSD (arXiv 2303.17604): one destination per window, the most similar sources join it, unmerging copies.

Equal to the package ``tomesd`` 0.1.3 where that works, and at work where it does not: on SDXL, on transformers, under
``torch.compile``. Two differences are meant. A ratio that the windows cannot give is refused, not capped in silence.
And its random pattern is its own: chosen anew for every image from ``seed``, the same for all guidance passes.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from tomadiff.errors import SettingError
from tomadiff.merging.grid import Grid
from tomadiff.merging.matching import MatchPlan, match
from tomadiff.merging.plan import Share
from tomadiff.methods.base import Levels, Method, Scope
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.settings import Count


@dataclass(frozen=True)
class ToMeSD(Method):
    """Token merging for Stable Diffusion, with the defaults of its paper: self-attention at the finest level.

    Attributes:
        stride: window ``(x, y)`` that holds one destination; ratios up to ``1 − 1/(x·y)`` are possible.
        random: choose the destination of each window anew for every plan; else take the top left one.
    """

    _: KW_ONLY
    stride: tuple[Count, Count] = (2, 2)
    random: bool = True
    scope: Scope = "block"
    share: Share = "sample"
    levels: Levels | None = (0,)
    merge_cross_attention: bool = False
    merge_feed_forward: bool = False
    plans_from: Literal["op", "block"] = "block"

    def __post_init__(self) -> None:
        super().__post_init__()
        windows = self.stride[0] * self.stride[1]
        if self.ratio > 1 - 1 / windows:
            raise SettingError(
                f"ratio={self.ratio} is more than windows of {self.stride[0]}×{self.stride[1]} can remove "
                f"({1 - 1 / windows:g}); choose a larger stride, such as (4, 4), or a smaller ratio."
            )

    @property
    def schedule(self) -> Schedule:
        """Matched anew at every step."""
        return Schedule(destinations_every=1, weights_every=1)

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,
        passes: int = 1,
        generator: torch.Generator | None = None,
        depth: float = 1.0,  # noqa: ARG002 - every block matches alike
    ) -> MatchPlan:
        """Match the sources of ``tokens`` ``(B, N, C)``; see :meth:`tomadiff.methods.base.Method.plan`."""
        ratio = self.ratio if ratio is None else ratio
        rng = (generator or torch.Generator().manual_seed(self.seed)) if self.random else None
        with torch.no_grad():
            return match(tokens, grid, ratio, self.stride, generator=rng, share=self.share, passes=passes)
