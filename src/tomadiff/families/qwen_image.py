"""Qwen-Image and its editing models: joint attention, feed-forward per stream."""

from __future__ import annotations

from torch import nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("image_rotary_emb", axis=0, tables="first")


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """``img_shapes``: per sample the shape of the image, then those of the images it is edited from."""
    shapes = call["img_shapes"]
    if not shapes:
        return None
    first = shapes[0] if isinstance(shapes[0], list) else shapes
    frames, height, width = first[0]
    grid = Grid(height, width, frames)
    return TokenLayout.flat(grid, tail=call.image.shape[1] - grid.tokens)


FAMILY = Family(
    name="qwen_image",
    title="Qwen-Image",
    models=("QwenImageTransformer2DModel",),
    blocks=(
        Block(
            "QwenImageTransformerBlock",
            ops=(Op("attn", "attention", ROTARY), Op("img_mlp", "feed_forward")),
            rotary=ROTARY,
            outputs=(1,),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("QwenImagePipeline", "QwenImageEditPipeline"),
    share="batch",
    note="text and images to edit from stay unmerged",
)
