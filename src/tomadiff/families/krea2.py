"""Krea 2: text, then the image, in one sequence."""

from __future__ import annotations

from torch import Tensor, nn

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.families.flux import grid_of

ROTARY = Rotary("image_rotary_emb", position=1)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """Ids ``(text + N, 3)``: time, row, column; those of text tokens are zero."""
    ids, text = call["position_ids"], call["encoder_hidden_states"].shape[1]
    grid = grid_of(ids[text:, 1], ids[text:, 2]) if isinstance(ids, Tensor) else None
    return None if grid is None else TokenLayout.flat(grid, head=text)


FAMILY = Family(
    name="krea2",
    title="Krea 2",
    models=("Krea2Transformer2DModel",),
    blocks=(
        Block(
            "Krea2TransformerBlock",
            ops=(Op("attn", "attention", ROTARY, mask=Mask("attention_mask")), Op("ff", "feed_forward")),
            rotary=ROTARY,
            mask=Mask("attention_mask", position=2),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("Krea2Pipeline",),
    share="batch",
    reads=("position_ids",),
    note="text stays unmerged",
)
