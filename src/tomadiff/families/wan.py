"""Wan 2.1 and 2.2 and models made of its blocks: video, one grid of frames × height × width."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("rotary_emb", position=2, axis=1)


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Videos ``(B, C, F, H, W)``, or images ``(B, C, H, W)``, that the model cuts into patches."""
    sizes = zip(call.image.shape[2:], model.config.patch_size, strict=True)
    *frames, height, width = (size // patch for size, patch in sizes)
    return TokenLayout.flat(Grid(height, width, *frames))


FAMILY = Family(
    name="wan",
    title="Wan",
    models=(
        "WanTransformer3DModel",
        "WanVACETransformer3DModel",
        "WanAnimateTransformer3DModel",
        "ChronoEditTransformer3DModel",
    ),
    blocks=(
        Block(
            "WanTransformerBlock",
            ops=(Op("attn1", "attention", ROTARY), Op("attn2", "cross_attention"), Op("ffn", "feed_forward")),
            rotary=ROTARY,
        ),
    ),
    stacks=stacks_named("blocks"),
    token_layout=token_layout,
    pipelines=(
        "WanPipeline",
        "WanImageToVideoPipeline",
        "WanVideoToVideoPipeline",
        "WanVACEPipeline",
        "WanAnimatePipeline",
        "ChronoEditPipeline",
    ),
    note="VACE's blocks for its control video stay unmerged, since every token gets their output; so do Animate's for "
    "faces, which see one frame each",
)
