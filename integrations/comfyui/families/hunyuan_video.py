"""HunyuanVideo: the blocks of Flux, with the image before the text."""

from __future__ import annotations

from typing import Any

from tomadiff.families import Block, Family, Mask, ModelCall, Rotary, TokenLayout
from tomadiff.families.base import stacks_named

from .flux import DOUBLE, SINGLE
from .words import CALL, grid_of, patches, text_length

_ROTARY, _MASK = Rotary("pe", axis=2), Mask("attention_mask")


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """The first frame of a video to go on from lies before it; the texts of up to three encoders lie behind."""
    frames = patches(call.image.shape[2], model.patch_size[0]) if call.image.dim() == 5 else 1
    grid = grid_of(call.image, model.patch_size[-1], frames)
    reference = call["ref_latent"]
    head = 0 if reference is None else grid_of(reference, model.patch_size[-1], reference.shape[2]).tokens
    others = [call[name] for name in ("txt_byt5", "clip_fea")]
    text = text_length(call) + sum(one.shape[1] for one in others if one is not None)
    return TokenLayout.flat(grid, head=head, sequences={"joint": (head, text)})


FAMILY = Family(
    name="hunyuan_video",
    title="HunyuanVideo",
    models=("HunyuanVideo",),
    blocks=(
        Block("DoubleStreamBlock", rotary=_ROTARY, outputs=(0,), mask=_MASK, names=DOUBLE, in_place=True),
        Block("SingleStreamBlock", rotary=_ROTARY, mask=_MASK, sequence="joint", names=SINGLE, in_place=True),
    ),
    stacks=stacks_named("double_blocks", "single_blocks"),
    token_layout=token_layout,
    names=CALL,
)
