"""Qwen-Image and its editing models."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, Op, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .words import CALL, TOKENS, grid_of, reference_tokens

_ROTARY = Rotary("image_rotary_emb", axis=2, text_first=True)


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """The image comes first, then images to edit from."""
    return TokenLayout.flat(grid_of(call.image, model.patch_size), reference_tokens(call, model.patch_size))


FAMILY = Family(
    name="qwen_image",
    title="Qwen-Image",
    models=("QwenImageTransformer2DModel",),
    blocks=(
        Block(
            "QwenImageTransformerBlock",
            ops=(Op("attn", "attention", _ROTARY, joint=True), Op("img_mlp", "feed_forward", names=TOKENS)),
            rotary=_ROTARY,
            outputs=(1,),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    share="batch",
    names=CALL,
    note="images to edit from stay unmerged",
)
