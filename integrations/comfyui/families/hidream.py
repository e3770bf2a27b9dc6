"""HiDream: blocks with the image apart, then blocks on image and text in one sequence."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, Op, Rotary, Stack, TokenLayout

from .words import CALL, TOKENS, grid_of, text_length

_NAMES = {"norm_image_tokens": "hidden_states"}
_ROTARY = Rotary("rope", axis=1)


def stacks(model: Any) -> list[Stack]:
    """Every block is wrapped in another module."""
    parts = ("double_stream_blocks", "single_stream_blocks")
    return [Stack(part, tuple(outer.block for outer in getattr(model, part))) for part in parts]


def token_layout(model: Any, call: ModelCall) -> TokenLayout | None:
    """Single blocks have three texts behind the image; an image to edit from lies beside it in the same rows."""
    if call["image_cond"] is not None:
        return None
    llama = call["encoder_hidden_states_llama3"].shape[2]
    grid = grid_of(call.image, model.patch_size)
    return TokenLayout.flat(grid, sequences={"joint": (0, text_length(call) + 2 * llama)})


FAMILY = Family(
    name="hidream",
    title="HiDream",
    models=("HiDreamImageTransformer2DModel",),
    blocks=(
        Block(
            "HiDreamImageTransformerBlock",
            ops=(Op("attn1", "attention", _ROTARY, joint=True, names=_NAMES), Op("ff_i", "feed_forward", names=TOKENS)),
        ),
        Block(
            "HiDreamImageSingleTransformerBlock",
            ops=(
                Op("attn1", "attention", _ROTARY, sequence="joint", names=_NAMES),
                Op("ff_i", "feed_forward", sequence="joint", names=TOKENS),
            ),
        ),
    ),
    stacks=stacks,
    token_layout=token_layout,
    names=CALL,
)
