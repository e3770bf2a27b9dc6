"""CogVideoX: joint attention with text and video apart; the feed-forward has them in one sequence, text first."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("image_rotary_emb")


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Videos ``(B, F, C, H, W)`` that the model cuts into patches."""
    frames, _, height, width = call.image.shape[1:]
    side, length = model.config.patch_size, model.config.patch_size_t or 1
    grid = Grid(height // side, width // side, -(-frames // length))
    return TokenLayout.flat(grid, sequences={"joint": (call["encoder_hidden_states"].shape[1], 0)})


FAMILY = Family(
    name="cogvideox",
    title="CogVideoX",
    models=("CogVideoXTransformer3DModel",),
    blocks=(
        Block(
            "CogVideoXBlock",
            ops=(Op("attn1", "attention", ROTARY, joint=True), Op("ff", "feed_forward", sequence="joint")),
            rotary=ROTARY,
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("CogVideoXPipeline", "CogVideoXImageToVideoPipeline", "CogVideoXVideoToVideoPipeline"),
    share="batch",
    note="text stays unmerged",
)
