"""UNets of Stable Diffusion 1.5, 2, SDXL base and refiner, with everything that loads into them."""

from __future__ import annotations

from typing import Any

from torch import nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Stack, TokenLayout
from tomadiff.merging.grid import Grid

BASIC_BLOCK = Block(
    "BasicTransformerBlock",
    ops=(Op("attn1", "attention"), Op("attn2", "cross_attention"), Op("ff", "feed_forward")),
)


def stacks(model: Any) -> list[Stack]:
    """Every transformer of the UNet in the order they run; the grid halves and doubles between them."""
    found, depth = [], 0
    for place, stage in enumerate(model.down_blocks):
        found += _transformers(stage, f"down_blocks.{place}", depth)
        depth += getattr(stage, "downsamplers", None) is not None
    if model.mid_block is not None:
        found += _transformers(model.mid_block, "mid_block", depth)
    for place, stage in enumerate(model.up_blocks):
        found += _transformers(stage, f"up_blocks.{place}", depth)
        depth -= getattr(stage, "upsamplers", None) is not None
    return found


def _transformers(stage: nn.Module, path: str, depth: int) -> list[Stack]:
    return [
        Stack(f"{path}.attentions.{place}", tuple(attention.transformer_blocks), depth, home=attention)
        for place, attention in enumerate(getattr(stage, "attentions", None) or ())
        if hasattr(attention, "transformer_blocks")
    ]


def token_layout(model: nn.Module, call: ModelCall) -> TokenLayout:
    """Convolutions of stride two round up."""
    height, width = call.image.shape[-2:]
    grids = {}
    for depth in range(len(model.down_blocks)):  # type: ignore[arg-type]
        grids[depth] = Grid(height, width)
        height, width = -(-height // 2), -(-width // 2)
    return TokenLayout(grids)


_BLIND_TO_ORDER = {
    "AttnProcessor",
    "AttnProcessor2_0",
    "FusedAttnProcessor2_0",
    "IPAdapterAttnProcessor",
    "IPAdapterAttnProcessor2_0",
    "IPAdapterXFormersAttnProcessor",
    "SlicedAttnProcessor",
    "XFormersAttnProcessor",
}  # attention whose result for a token does not depend on where in the sequence it stands


def order_matters(model: Any, call: ModelCall) -> bool:
    """No layer of a UNet's transformers knows positions; masks and attention of other people's making may."""
    if call["attention_mask"] is not None or (call["cross_attention_kwargs"] or {}).get("ip_adapter_masks") is not None:
        return True
    return any(_knows_order(block) for stack in stacks(model) for block in stack.blocks)


def _knows_order(block: nn.Module) -> bool:
    """By the names of its processors; asked at every call, so the tree of modules is not searched for them."""
    attentions = (getattr(block, path, None) for path in ("attn1", "attn2"))
    names = {type(getattr(one, "processor", None)).__name__ for one in attentions if one is not None}
    return not names <= _BLIND_TO_ORDER or getattr(block, "fuser", None) is not None


FAMILY = Family(
    name="unet",
    title="Stable Diffusion 1.5, 2 and SDXL",
    models=("UNet2DConditionModel",),
    blocks=(BASIC_BLOCK,),
    stacks=stacks,
    token_layout=token_layout,
    order_matters=order_matters,
    pipelines=(
        "StableDiffusionPipeline",
        "StableDiffusionXLPipeline",
        "StableDiffusionXLImg2ImgPipeline",
        "StableDiffusionXLInpaintPipeline",
        "StableDiffusionXLControlNetPipeline",
    ),
)
