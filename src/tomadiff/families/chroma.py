"""Chroma: Flux's joint blocks with a mask of the text, then single blocks on text and image in one sequence."""

from __future__ import annotations

from torch import nn

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, TokenLayout, stacks_named
from tomadiff.families.flux import ROTARY
from tomadiff.families.flux import token_layout as flux_layout

MASK = Mask("attention_mask", text_first=True)  # blocks are given one row, and make a square of it


def token_layout(model: nn.Module, call: ModelCall) -> TokenLayout | None:
    """Flux's ids; single blocks have the text before the image."""
    layout = flux_layout(model, call)
    if layout is None:
        return None
    text = call["encoder_hidden_states"].shape[1]
    return TokenLayout.flat(layout.grids[0], layout.tail, sequences={"joint": (text, layout.tail)})


FAMILY = Family(
    name="chroma",
    title="Chroma",
    models=("ChromaTransformer2DModel",),
    blocks=(
        Block(
            "ChromaTransformerBlock",
            ops=(
                Op(
                    "attn", "attention", ROTARY, (0, 2), joint=True,
                    mask=Mask("attention_mask", text_first=True, square=True),
                ),
                Op("ff", "feed_forward"),
            ),
            rotary=ROTARY,
            outputs=(1,),
            mask=MASK,
        ),
        Block("ChromaSingleTransformerBlock", rotary=ROTARY, sequence="joint", mask=MASK),
    ),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("ChromaPipeline", "ChromaImg2ImgPipeline", "ChromaInpaintPipeline"),
    share="batch",
    reads=("img_ids",),
    note="text stays unmerged",
)  # fmt: skip
