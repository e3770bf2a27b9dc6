"""LTX-2: video and audio side by side; tokens of the video merge, references behind them stay."""

from __future__ import annotations

from torch import nn

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, Rows, TokenLayout, stacks_named
from tomadiff.families.ltx import named_grid

ROTARY = Rotary("query_rotary_emb", axis=-2)  # (B, N, C), or with heads before the tokens
PER_TOKEN = (  # one time per token where a frame is given
    Rows("temb", axis=1, dims=3),
    Rows("temb_ca_scale_shift", axis=1, dims=3),
    Rows("temb_ca_gate", axis=1, dims=3),
)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """The video, then its references."""
    grid = named_grid(call)
    return None if grid is None else TokenLayout.flat(grid, tail=call.image.shape[1] - grid.tokens)


FAMILY = Family(
    name="ltx2",
    title="LTX-2",
    models=("LTX2VideoTransformer3DModel",),
    blocks=(
        Block(
            "LTX2VideoTransformerBlock",
            ops=(
                Op("attn1", "attention", ROTARY, mask=Mask("attention_mask", square=True)),
                Op("attn2", "cross_attention"),
                Op("audio_to_video_attn", "cross_attention", ROTARY),
                Op("ff", "feed_forward"),
            ),
            rotary=Rotary("video_rotary_emb", axis=-2),
            mask=Mask("self_attention_mask", square=True),
            rows=(Rows("ca_video_rotary_emb", axis=-2), *PER_TOKEN),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("LTX2Pipeline", "LTX2ImageToVideoPipeline", "LTX2ConditionPipeline", "LTX2InContextPipeline"),
    note="audio, and reference tokens behind the video, stay unmerged",
)
