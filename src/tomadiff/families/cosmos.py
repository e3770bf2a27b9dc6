"""Cosmos-Predict2 and Anima: images and video, one grid of frames × height × width."""

from __future__ import annotations

from tomadiff.families.base import Block, Family, Op, Rotary, Rows, stacks_named
from tomadiff.families.wan import token_layout

ROTARY = Rotary("image_rotary_emb", position=3)
PER_TOKEN = (  # one time per frame, learned positions, residuals of a ControlNet
    Rows("embedded_timestep", position=1, axis=1, dims=3),
    Rows("temb", position=2, axis=1, dims=3),
    Rows("extra_pos_emb", position=4, axis=1),
    Rows("controlnet_residual", position=6, axis=1),
)

FAMILY = Family(
    name="cosmos",
    title="Cosmos-Predict2 and Anima",
    models=("CosmosTransformer3DModel",),
    blocks=(
        Block(
            "CosmosTransformerBlock",
            ops=(Op("attn1", "attention", ROTARY), Op("attn2", "cross_attention"), Op("ff", "feed_forward")),
            rotary=ROTARY,
            rows=PER_TOKEN,
            mask="text",
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("Cosmos2TextToImagePipeline", "Cosmos2VideoToWorldPipeline", "AnimaModularPipeline"),
    share="batch",
)
