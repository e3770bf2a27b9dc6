"""FLUX.3 Image Klein: blocks of the image alone, then blocks on text, image and references in one sequence."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, Rows, Stack, TokenLayout
from tomadiff.families.flux import grid_of

ROTARY = Rotary("image_rotary_emb", position=1)
JOINT = Rotary("image_rotary_emb", text_first=True)


def stacks(model: Any) -> list[Stack]:
    """Text and references have blocks of their own, which stay as they are."""
    image = Stack("mode_blocks.image", tuple(model.mode_blocks["image"]))
    return [image, Stack("single_transformer_blocks", tuple(model.single_transformer_blocks))]


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """Ids ``(N, 4)``: time, row, column, layer, in steps that need not be 1."""
    ids, references = call["img_ids"], call["image_cond_hidden_states"]
    grid = grid_of(ids[:, 1], ids[:, 2]) if isinstance(ids, Tensor) else None
    if grid is None:
        return None
    text, behind = call["encoder_hidden_states"].shape[1], 0 if references is None else references.shape[1]
    return TokenLayout.flat(grid, sequences={"joint": (text, behind), "content": (0, behind)})


FAMILY = Family(
    name="flux3",
    title="FLUX.3",
    models=("Flux3Transformer2DModel",),
    blocks=(
        Block(
            "Flux3ModeTransformerBlock",
            ops=(Op("attn", "attention", ROTARY), Op("ff", "feed_forward")),
            rotary=ROTARY,
            rows=(Rows("temb_mod", position=0, axis=1),),
        ),
        Block(
            "Flux3SingleTransformerBlock",
            ops=(Op("attn", "attention", JOINT, sequence="joint"), Op("ff", "feed_forward", sequence="joint")),
            rotary=JOINT,
            outputs=(1,),
            sequence="content",
            rows=(Rows("temb_mod", axis=1),),
        ),
    ),
    stacks=stacks,
    token_layout=token_layout,
    pipelines=("Flux3ModularPipeline", "Flux3DistilledModularPipeline"),
    share="batch",
    reads=("img_ids",),
    note="text and reference images stay unmerged",
)
