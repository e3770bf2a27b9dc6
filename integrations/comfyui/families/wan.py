"""Wan 2.1 and 2.2: video, one grid of frames × height × width."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, ModelCall, Op, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .words import CALL, TOKENS, grid_of, patches

_ROTARY = Rotary("freqs", axis=1)


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Frames that are given stand behind, a reference image before."""
    frames, height, _ = model.patch_size
    given, reference = call["time_dim_concat"], call["reference_latent"] if model.ref_conv is not None else None
    count = call.image.shape[2] + (0 if given is None else patches(given.shape[2], frames) * frames)
    head = 0 if reference is None else grid_of(reference, height).tokens
    return TokenLayout.flat(grid_of(call.image, height, patches(count, frames)), head=head)


FAMILY = Family(
    name="wan",
    title="Wan",
    models=("WanModel",),
    blocks=(
        Block(
            "WanAttentionBlock",
            ops=(
                Op("self_attn", "attention", _ROTARY, names=TOKENS),
                Op("cross_attn", "cross_attention", names=TOKENS),
                Op("ffn", "feed_forward"),
            ),
            rotary=_ROTARY,
            names=TOKENS,
        ),
    ),
    stacks=stacks_named("blocks"),
    token_layout=token_layout,
    names=CALL,
)
