"""UNets: Stable Diffusion 1.5, 2, SDXL and all that load into them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from tomadiff.families import Block, Family, ModelCall, Op, Stack, TokenLayout
from tomadiff.merging.grid import Grid

from .words import CALL, TOKENS

_NAMES = {**TOKENS, "context": "encoder_hidden_states", "mask": "attention_mask"}


def stacks(model: Any) -> list[Stack]:
    """Every transformer in the order they run; the grid halves and doubles between them."""
    found, depth = [], 0
    for name, layer in _layers(model):
        kind = type(layer).__name__
        if kind == "SpatialTransformer":  # those of video see frames too
            found.append(Stack(name, tuple(layer.transformer_blocks), depth, home=layer))
        depth += (kind == "Downsample") - (kind == "Upsample")
    return found


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    for part in ("input_blocks", "middle_block", "output_blocks"):
        stages = [getattr(model, part)] if part == "middle_block" else getattr(model, part)
        for place, stage in enumerate(stages):
            for number, layer in enumerate(stage if stage is not None else ()):
                yield f"{part}.{place}.{number}", layer


def token_layout(model: nn.Module, call: ModelCall) -> TokenLayout:
    """Convolutions of stride two round up."""
    height, width = call.image.shape[-2:]
    grids = {}
    for depth in sorted({stack.depth for stack in stacks(model)}):
        grids[depth] = Grid(-(-height // 2**depth), -(-width // 2**depth))
    return TokenLayout(grids)


FAMILY = Family(
    name="unet",
    title="Stable Diffusion 1.5, 2 and SDXL",
    models=("UNetModel",),
    blocks=(
        Block(
            "BasicTransformerBlock",
            ops=(
                Op("attn1", "attention", names=_NAMES, again=("encoder_hidden_states", "value")),
                Op("attn2", "cross_attention", names=_NAMES),
                Op("ff", "feed_forward", names=TOKENS),
            ),
            names=TOKENS,
        ),
    ),
    stacks=stacks,
    token_layout=token_layout,
    names=CALL,
)
