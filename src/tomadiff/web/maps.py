"""Which tokens merged, in every block and at every step: looked at while generating, laid over the image afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from tomadiff.engine.group import PlanGroup
from tomadiff.evaluation.report.figures import PAPER, clusters
from tomadiff.evaluation.report.overlay import outlined, stays, veiled
from tomadiff.evaluation.runs.timer import now
from tomadiff.merging.plan import Plan

VIEWS = ("destinations", "clusters", "coverage")
LOST = (214, 40, 40)  # red, where a token resembles its destination least
SIDE = 512  # pixels; smaller images are enlarged, so that single tokens can be told apart


@dataclass(frozen=True)
class TokenMap:
    """What a plan does to each token of a grid ``(height, width)``.

    Attributes:
        stays: true for destinations.
        labels: the destination, as a number in 0..K-1, that each token takes most from; kept as small as such
            numbers fit, for there is a map for every block and step.
        alike: ``(cos + 1) / 2`` of each token and that destination, when the plan was made.
        coverage: the plan's own number: the mean of that over tokens and samples, where the method measures it.
    """

    stays: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.unsignedinteger[Any]]
    alike: npt.NDArray[np.float32]
    coverage: float

    @property
    def kept(self) -> int:
        """Tokens after merging."""
        return int(self.stays.sum())

    def __str__(self) -> str:
        height, width = self.stays.shape
        return f"{self.kept} of {self.stays.size} tokens ({height} × {width}) stay, coverage {self.coverage:.4f}"


Maps = Mapping[str, Mapping[int, TokenMap]]
"""By the name of a block (or of a level, where its blocks share a plan), then by step."""


def token_map(plan: Plan, tokens: Tensor) -> TokenMap:
    """The map of a plan made from ``tokens`` ``(B, N, C)``; of a batch, that of the last sample, the guided one."""
    labels, own = clusters(plan, plan.grid), tokens[-1].float()
    goals = own[plan.destinations[-1]][torch.from_numpy(labels.ravel()).to(own.device)]
    alike = (torch.cosine_similarity(own, goals, dim=-1) + 1) / 2
    mean = float(plan.coverage.float().mean())
    small = labels.astype(np.min_scalar_type(plan.kept - 1))
    return TokenMap(stays(plan), small, alike.cpu().numpy().reshape(labels.shape), mean)


@dataclass
class Looker:
    """Makes the maps of a patched pipeline while it generates: ``patch.watch(Looker())``.

    Looking takes time that merging does not: ``seconds`` says how much, to be taken off the clock.
    """

    maps: dict[str, dict[int, TokenMap]] = field(default_factory=dict)
    seconds: float = 0.0
    _latest: dict[str, tuple[Plan, TokenMap]] = field(default_factory=dict)

    def __call__(self, name: str, group: PlanGroup, tokens: Tensor) -> None:
        """See :meth:`tomadiff.patch.Patch.watch`; a plan that serves several steps is looked at once."""
        info, plan = group.context.info, group.last
        if info.pass_index > 0 or plan is None:  # later passes of a step share the destinations of its first
            return
        start = now(tokens.device)
        if name not in self._latest or self._latest[name][0] is not plan:
            self._latest[name] = plan, token_map(plan, tokens)
        self.maps.setdefault(name, {})[info.step] = self._latest[name][1]
        self.seconds += now(tokens.device) - start


# ---------------------------------------------------------------------------------------------- over the image
def overlay(image: Image.Image, shown: TokenMap, view: str) -> Image.Image:
    """The image with one of :data:`VIEWS` of the map over it."""
    photo = _enlarged(image.convert("RGB"))
    if view == "destinations":
        return veiled(photo, shown.stays)
    return outlined(photo, shown.labels) if view == "clusters" else _stained(photo, shown.alike)


def _enlarged(image: Image.Image) -> Image.Image:
    factor = max(1, -(-SIDE // min(image.size)))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.LANCZOS)


def _stained(photo: Image.Image, alike: npt.NDArray[np.float32]) -> Image.Image:
    """Paper where tokens equal their destination, the redder the less they do; the image shines through."""
    lost = (1 - alike) / max(float((1 - alike).max()), 1e-6)
    stain = Image.fromarray((255 * lost).astype(np.uint8)).resize(photo.size, Image.Resampling.NEAREST)
    pale = Image.blend(photo, Image.new("RGB", photo.size, PAPER), 0.6)
    return Image.composite(Image.new("RGB", photo.size, LOST), pale, stain)
