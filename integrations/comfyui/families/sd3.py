"""Stable Diffusion 3 and 3.5: blocks that are merged whole, since attention is in no layer of its own."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, TokenLayout
from tomadiff.families.base import stacks_named

from .words import CALL, TOKENS, grid_of


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """The image alone; text goes through the blocks beside it."""
    return TokenLayout.flat(grid_of(call.image, model.patch_size))


FAMILY = Family(
    name="sd3",
    title="Stable Diffusion 3 and 3.5",
    models=("OpenAISignatureMMDITWrapper",),  # AuraFlow's model is an MMDiT too, of another kind
    blocks=(
        Block(
            "JointBlock",
            outputs=(1,),
            names={"context": "encoder_hidden_states", **TOKENS},  # it names none itself: in the order they are given
        ),
    ),
    stacks=stacks_named("joint_blocks"),
    token_layout=token_layout,
    names=CALL,
    note="text stays unmerged",
)
