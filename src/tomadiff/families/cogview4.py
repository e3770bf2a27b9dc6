"""CogView4 and GLM-Image: joint attention; one feed-forward serves the image and the text in turn."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.families.pixart import patched_layout

OPS = (
    Op("attn1", "attention", Rotary("image_rotary_emb"), joint=True, mask="text", whole="kv_cache"),
    Op("ff", "feed_forward", serves_text=True),
)


def token_layout(model: Any, call: ModelCall) -> TokenLayout | None:
    """Images ``(B, C, H, W)`` in patches. Images to edit from are read into a cache first, whole."""
    caches = call["kv_caches"]
    if caches is not None and caches[0].mode == "write":
        return None
    grid = patched_layout(model, call).grids[0]
    return TokenLayout.flat(grid, text=call["encoder_hidden_states"].shape[1])


def block(name: str) -> Block:
    """The only kind of block of one model."""
    return Block(name, OPS, rotary=Rotary("image_rotary_emb", position=2), mask="text", whole="kv_cache")


FAMILY = Family(
    name="cogview4",
    title="CogView4 and GLM-Image",
    models=("CogView4Transformer2DModel", "GlmImageTransformer2DModel"),
    blocks=(block("CogView4TransformerBlock"), block("GlmImageTransformerBlock")),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("CogView4Pipeline", "CogView4ControlPipeline", "GlmImagePipeline"),
    share="batch",
    note="text and the K/V cache of images to edit from stay unmerged; the feed-forward does where the text is as long "
    "as the image, since it serves both and cannot tell them apart",
)
