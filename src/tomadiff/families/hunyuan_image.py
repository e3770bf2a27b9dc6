"""HunyuanImage 2.1 and its refiner: HunyuanVideo's blocks, on images."""

from __future__ import annotations

from tomadiff.families.base import Block, Family, stacks_named
from tomadiff.families.hunyuan_video import MASK, OPS, ROTARY
from tomadiff.families.wan import token_layout

FAMILY = Family(
    name="hunyuan_image",
    title="HunyuanImage 2.1",
    models=("HunyuanImageTransformer2DModel",),
    blocks=(
        Block("HunyuanImageTransformerBlock", OPS, ROTARY, mask=MASK),
        Block("HunyuanImageSingleTransformerBlock", rotary=ROTARY, mask=MASK),
    ),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("HunyuanImagePipeline", "HunyuanImageRefinerPipeline"),
    share="batch",
    note="text stays unmerged",
)
