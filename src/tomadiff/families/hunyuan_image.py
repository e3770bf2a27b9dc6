"""HunyuanImage 2.1 and its refiner: HunyuanVideo's blocks, on images."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY, MASK = Rotary("image_rotary_emb"), Mask("attention_mask")


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Images ``(B, C, H, W)``, of the refiner ``(B, C, F, H, W)``."""
    patch = model.config.patch_size
    sizes = [size // side for size, side in zip(call.image.shape[2:], patch, strict=True)]
    return TokenLayout.flat(Grid(*sizes[-2:], *sizes[:-2]))


FAMILY = Family(
    name="hunyuan_image",
    title="HunyuanImage 2.1",
    models=("HunyuanImageTransformer2DModel",),
    blocks=(
        Block(
            "HunyuanImageTransformerBlock",
            ops=(Op("attn", "attention", ROTARY, joint=True, mask=MASK), Op("ff", "feed_forward")),
            rotary=ROTARY,
            mask=MASK,
        ),
        Block("HunyuanImageSingleTransformerBlock", rotary=ROTARY, mask=MASK),
    ),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("HunyuanImagePipeline", "HunyuanImageRefinerPipeline"),
    share="batch",
    note="text stays unmerged",
)
