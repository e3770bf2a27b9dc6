"""HunyuanVideo 1.5: joint blocks; attention makes its mask from the text's."""

from __future__ import annotations

from tomadiff.families.base import Block, Family, Op, Rotary, stacks_named
from tomadiff.families.hunyuan_video import token_layout

FAMILY = Family(
    name="hunyuan_video15",
    title="HunyuanVideo 1.5",
    models=("HunyuanVideo15Transformer3DModel",),
    blocks=(
        Block(
            "HunyuanVideo15TransformerBlock",
            ops=(
                Op("attn", "attention", Rotary("image_rotary_emb"), joint=True, mask="text"),
                Op("ff", "feed_forward"),
            ),
            rotary=Rotary("freqs_cis", position=3),
            mask="text",
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("HunyuanVideo15Pipeline", "HunyuanVideo15ImageToVideoPipeline"),
    share="batch",
    note="text stays unmerged",
)
