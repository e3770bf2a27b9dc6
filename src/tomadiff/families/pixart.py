"""PixArt α and Σ."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Family, ModelCall, TokenLayout, stacks_named
from tomadiff.families.unet import BASIC_BLOCK
from tomadiff.merging.grid import Grid


def patched_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Images ``(B, C, H, W)`` that the model cuts into square patches."""
    height, width = call.image.shape[-2:]
    patch = model.config.patch_size
    return TokenLayout.flat(Grid(height // patch, width // patch))


FAMILY = Family(
    name="pixart",
    title="PixArt α and Σ",
    models=("PixArtTransformer2DModel",),
    blocks=(BASIC_BLOCK,),
    stacks=stacks_named("transformer_blocks"),
    token_layout=patched_layout,
    pipelines=("PixArtAlphaPipeline", "PixArtSigmaPipeline"),
)
