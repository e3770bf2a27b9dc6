"""Cosmos-Predict2 and Anima: attention merges; the feed-forward is given a grid instead of a sequence."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, Op, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .words import CALL, TOKENS, grid_of, patches

_ROTARY = Rotary("rope_emb", axis=1)


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Videos ``(B, C, F, H, W)``."""
    frames = patches(call.image.shape[2], model.patch_temporal)
    return TokenLayout.flat(grid_of(call.image, model.patch_spatial, frames))


FAMILY = Family(
    name="cosmos",
    title="Cosmos-Predict2 and Anima",
    models=("MiniTrainDIT",),
    blocks=(
        Block(
            "Block",
            ops=(
                Op("self_attn", "attention", _ROTARY, names=TOKENS),
                Op("cross_attn", "cross_attention", names=TOKENS),
            ),
        ),
    ),
    stacks=stacks_named("blocks"),
    token_layout=token_layout,
    names=CALL,
    note="the feed-forward stays unmerged",
)
