"""LongCat-Image, Ovis-Image and Bria 3.2: the blocks of Flux.1 under names of their own."""

from __future__ import annotations

from tomadiff.families.base import Block, Family, Op, stacks_named
from tomadiff.families.flux import ROTARY, token_layout


def blocks(prefix: str) -> tuple[Block, Block]:
    """The joint and the single block of one model."""
    ops = (Op("attn", "attention", ROTARY, (0, 2), joint=True), Op("ff", "feed_forward"))
    return (
        Block(f"{prefix}TransformerBlock", ops=ops, rotary=ROTARY, outputs=(1,)),
        Block(f"{prefix}SingleTransformerBlock", rotary=ROTARY, outputs=(1,)),
    )


FAMILY = Family(
    name="flux_kin",
    title="LongCat-Image, Ovis-Image and Bria",
    models=("LongCatImageTransformer2DModel", "OvisImageTransformer2DModel", "BriaTransformer2DModel"),
    blocks=(*blocks("LongCatImage"), *blocks("OvisImage"), *blocks("Bria")),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("LongCatImagePipeline", "LongCatImageEditPipeline", "OvisImagePipeline", "BriaPipeline"),
    share="batch",
    reads=("img_ids",),
    note="text and images to edit from stay unmerged",
)
