"""LTX-Video: one token per place and frame of the latents."""

from __future__ import annotations

from torch import nn

from tomadiff.families import Block, Family, ModelCall, Op, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .words import CALL, TOKENS, grid_of

_NAMES = {**TOKENS, "mask": "attention_mask"}


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout:
    """Key frames are part of the video."""
    return TokenLayout.flat(grid_of(call.image, 1, call.image.shape[2]))


FAMILY = Family(
    name="ltx",
    title="LTX-Video",
    models=("LTXVModel",),
    blocks=(
        Block(
            "BasicTransformerBlock",
            ops=(
                Op("attn1", "attention", Rotary("pe", axis=2), names=_NAMES),
                Op("attn2", "cross_attention", names=_NAMES),
                Op("ff", "feed_forward", names=TOKENS),
            ),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    names=CALL,
)
