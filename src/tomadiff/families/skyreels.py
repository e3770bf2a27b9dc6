"""SkyReels-V2: Wan's layers; with a time of its own for every frame, and a mask between blocks of frames."""

from __future__ import annotations

from tomadiff.families.base import Block, Family, Mask, Op, Rotary, Rows, stacks_named
from tomadiff.families.wan import token_layout

ROTARY = Rotary("rotary_emb", position=2, axis=1)
WITH_HEADS_FIRST = Rows(
    "rotary_emb", position=2, axis=2
)  # of diffusers 0.35; where axis 1 has one row, it is left alone

FAMILY = Family(
    name="skyreels",
    title="SkyReels-V2",
    models=("SkyReelsV2Transformer3DModel",),
    blocks=(
        Block(
            "SkyReelsV2TransformerBlock",
            ops=(
                Op(
                    "attn1",
                    "attention",
                    ROTARY,
                    mask=Mask("attention_mask", position=1, square=True),
                    rows=(WITH_HEADS_FIRST,),
                ),
                Op("attn2", "cross_attention"),
                Op("ffn", "feed_forward"),
            ),
            rotary=ROTARY,
            mask=Mask("attention_mask", position=3, square=True),
            rows=(Rows("temb", position=1, axis=2, dims=4), WITH_HEADS_FIRST),
        ),
    ),
    stacks=stacks_named("blocks"),
    token_layout=token_layout,
    pipelines=("SkyReelsV2Pipeline", "SkyReelsV2ImageToVideoPipeline", "SkyReelsV2DiffusionForcingPipeline"),
    note="tiles lie in one frame each by default, and should where frames have times of their own",
)
