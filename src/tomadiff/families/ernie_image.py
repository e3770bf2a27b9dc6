"""ERNIE-Image: the image, then the text, in one sequence; blocks hold tokens before samples."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.families.pixart import patched_layout


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Images ``(B, C, H, W)`` in patches, the padded text behind."""
    return TokenLayout.flat(patched_layout(model, call).grids[0], tail=call["text_bth"].shape[1])


FAMILY = Family(
    name="ernie_image",
    title="ERNIE-Image",
    models=("ErnieImageTransformer2DModel",),
    blocks=(
        Block(
            "ErnieImageSharedAdaLNBlock",
            ops=(
                Op("self_attention", "attention", Rotary("image_rotary_emb", axis=1), mask=Mask("attention_mask")),
                Op("mlp", "feed_forward", tokens_first=True),
            ),
            only_ops=True,
        ),
    ),
    stacks=stacks_named("layers"),
    token_layout=token_layout,
    pipelines=("ErnieImagePipeline",),
    note="text stays unmerged",
)
