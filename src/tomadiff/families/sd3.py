"""Stable Diffusion 3 and 3.5: joint attention, in some blocks a second attention of the image alone."""

from __future__ import annotations

from tomadiff.families.base import Block, Family, Op, stacks_named
from tomadiff.families.pixart import patched_layout

FAMILY = Family(
    name="sd3",
    title="Stable Diffusion 3 and 3.5",
    models=("SD3Transformer2DModel",),
    blocks=(
        Block(
            "JointTransformerBlock",
            ops=(Op("attn", "attention", joint=True), Op("attn2", "attention", joint=True), Op("ff", "feed_forward")),
            outputs=(1,),
        ),
        Block(
            "SD3SingleTransformerBlock",
            ops=(Op("attn", "attention", joint=True), Op("ff", "feed_forward")),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=patched_layout,
    pipelines=("StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "StableDiffusion3ControlNetPipeline"),
    note="text stays unmerged",
)
