"""Qwen-Image 2.1: text, images to edit from, then the image, in one sequence; from the second step on the image alone,
with keys of the others in a cache."""

from __future__ import annotations

from torch import nn

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, Rows, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("rotary_emb")
MASK = Mask("attention_mask", text_first=True)
VALID = Rows("key_valid", axis=1)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """``img_shapes``: per sample the shapes of the images it is edited from, then that of the image. ``img_mask`` has
    a slot for every text token, and one for every four image tokens."""
    shapes, slots = call["img_shapes"], call["img_mask"]
    if not shapes or slots is None:
        return None
    frames, height, width = shapes[0][-1]
    grid, images = Grid(height, width, frames), call.image.shape[1]
    before = slots.shape[1] - images // 4 + images - grid.tokens
    return TokenLayout.flat(grid, head=0 if call["kv_cache_mode"] == "cached" else before)


FAMILY = Family(
    name="qwen_image21",
    title="Qwen-Image 2.1",
    models=("QwenImage21Transformer2DModel",),
    blocks=(
        Block(
            "QwenImage21TransformerBlock",
            ops=(
                Op("attn", "attention", ROTARY, mask=MASK, rows=(VALID,), whole="layer_cache"),
                Op("img_mlp", "feed_forward"),
            ),
            rotary=ROTARY,
            mask=MASK,
            rows=(VALID, Rows("target_token_mask")),
            whole="modulation",
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("QwenImage21Pipeline",),
    share="batch",
    note="text, images to edit from and their K/V cache stay unmerged",
)
