"""HunyuanVideo: joint blocks, then single blocks that can only be wrapped whole; a mask over video and text."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("image_rotary_emb", position=3)
MASK = Mask("attention_mask", position=2)
OPS = (Op("attn", "attention", ROTARY, joint=True, mask=MASK), Op("ff", "feed_forward"))


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Videos ``(B, C, F, H, W)`` that the model cuts into patches."""
    (frames, height, width), config = call.image.shape[-3:], model.config
    side = config.patch_size
    return TokenLayout.flat(Grid(height // side, width // side, frames // config.patch_size_t))


FAMILY = Family(
    name="hunyuan_video",
    title="HunyuanVideo",
    models=("HunyuanVideoTransformer3DModel",),
    blocks=(
        Block("HunyuanVideoTransformerBlock", OPS, ROTARY, mask=MASK),
        Block("HunyuanVideoSingleTransformerBlock", rotary=ROTARY, mask=MASK),
        Block("HunyuanVideoTokenReplaceTransformerBlock", OPS, only_ops=True),
    ),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("HunyuanVideoPipeline", "HunyuanVideoImageToVideoPipeline"),
    share="batch",
    note="text stays unmerged; so do single blocks where tokens of the first frame are replaced (image to video), "
    "since they treat so many rows as that frame",
)
