"""Flux.1, FLUX.2, Kontext and Chroma: blocks that are merged whole, since their layers cannot be wrapped alone."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .words import ADDITIVE, CALL, TOKENS, grid_of, reference_tokens, text_length

DOUBLE = {
    "img": "hidden_states",
    "txt": "encoder_hidden_states",
    "attn_mask": "attention_mask",
    "modulation_dims_img": "modulate_index",
}
SINGLE = {**TOKENS, "attn_mask": "attention_mask", "modulation_dims": "modulate_index"}


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """The image comes first, then images to edit from; single blocks have the text before both."""
    tail = reference_tokens(call, model.patch_size)
    return TokenLayout.flat(grid_of(call.image, model.patch_size), tail, sequences={"joint": (text_length(call), tail)})


FAMILY = Family(
    name="flux",
    title="Flux.1, FLUX.2 and Chroma",
    models=("Flux", "Chroma"),
    blocks=(
        Block(
            "DoubleStreamBlock",
            rotary=Rotary("pe", axis=2, text_first=True),
            outputs=(0,),
            key_bias="attention_mask",
            names=DOUBLE,
            in_place=True,
        ),
        Block(
            "SingleStreamBlock",
            rotary=Rotary("pe", axis=2),
            key_bias="attention_mask",
            sequence="joint",
            names=SINGLE,
            in_place=True,
        ),
    ),
    stacks=stacks_named("double_blocks", "single_blocks"),
    token_layout=token_layout,
    skip=10 / 57,
    share="batch",
    defaults={"quota": "shared", "proportional": True},
    bias_backends=ADDITIVE,
    names=CALL,
    note="images to edit from stay unmerged",
)
