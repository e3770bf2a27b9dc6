"""What one table of the paper is, as data; ``experiments.py`` has all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tomadiff.evaluation.paper.claims import Claim
from tomadiff.evaluation.runs.variants import Variant


@dataclass(frozen=True)
class Grid:
    """A figure of images side by side: one prompt per row, one column per variant."""

    number: int
    title: str
    columns: tuple[Variant, ...]


@dataclass(frozen=True)
class Seen:
    """A figure of what ``tomadiff inspect`` sees, by its name there."""

    number: int
    name: str


@dataclass(frozen=True)
class Experiment:
    """One table of the paper.

    Attributes:
        table: of the paper.
        title: what it compares, in a few words.
        variants: what to compare; the unmerged model comes first.
        claims: what the paper says about it.
        scaling: what is different here from the paper, beyond the model.
        kind: of model that it is about: a UNet, or a diffusion transformer.
        figures: grids of images that the paper shows with it.
        curves: whether the paper plots quality over time (its figure 5).
        steps: of denoising as in the paper, where the question is about steps; ``None`` leaves them to the model.
        seen: figures of hidden states and plans that the paper shows with it.
    """

    table: int
    title: str
    variants: tuple[Variant, ...]
    claims: tuple[Claim, ...]
    scaling: str
    kind: Literal["unet", "transformer"] = "unet"
    figures: tuple[Grid, ...] = ()
    curves: bool = False
    steps: int | None = None
    seen: tuple[Seen, ...] = ()
