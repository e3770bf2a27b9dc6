"""Lumina Image 2 and NetaYume: text, then the image, in one sequence."""

from __future__ import annotations

from torch import nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.families.pixart import patched_layout

ROTARY = Rotary("image_rotary_emb", position=1, axis=1)


def token_layout(model: nn.Module, call: ModelCall) -> TokenLayout | None:
    """The image begins where a sample's own text ends, so texts of a batch must have one length."""
    lengths = set(call["encoder_attention_mask"].sum(1).tolist())
    if len(lengths) > 1:
        return None
    return TokenLayout.flat(patched_layout(model, call).grids[0], head=int(lengths.pop()))


FAMILY = Family(
    name="lumina2",
    title="Lumina Image 2",
    models=("Lumina2Transformer2DModel",),
    blocks=(
        Block(
            "Lumina2TransformerBlock",
            ops=(
                Op("attn", "attention", ROTARY, again=("encoder_hidden_states",)),
                Op("feed_forward", "feed_forward"),
            ),
            rotary=ROTARY,
        ),
    ),
    stacks=stacks_named("layers"),
    token_layout=token_layout,
    pipelines=("Lumina2Pipeline",),
    reads=("encoder_attention_mask",),
    note="text and the refiner blocks stay unmerged; so does a batch of texts of several lengths, since "
    "its images begin at different places",
)
