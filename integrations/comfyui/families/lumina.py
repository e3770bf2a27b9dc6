"""Lumina 2 and Z-Image: text first, then the image, in one sequence."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, Op, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .words import CALL, TOKENS, grid_of, text_length

_NAMES = {**TOKENS, "x_mask": "attention_mask"}
_ROTARY = Rotary("freqs_cis", axis=1)


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Z-Image fills up both to a multiple of tokens."""
    grid, multiple = grid_of(call.image, model.patch_size), model.pad_tokens_multiple or 1
    text = text_length(call)
    return TokenLayout.flat(grid, tail=-grid.tokens % multiple, head=text + -text % multiple)


FAMILY = Family(
    name="lumina",
    title="Lumina 2 and Z-Image",
    models=("NextDiT",),
    blocks=(
        Block(
            "JointTransformerBlock",
            ops=(Op("attention", "attention", _ROTARY, names=_NAMES), Op("feed_forward", "feed_forward", names=TOKENS)),
            rotary=_ROTARY,
            names=_NAMES,
        ),
    ),
    stacks=stacks_named("layers"),
    token_layout=token_layout,
    names=CALL,
    note="the blocks that see the image or the text alone stay unmerged",
)
