"""AuraFlow: joint blocks, then single blocks on registers, text and image in one sequence."""

from __future__ import annotations

from typing import Any

from tomadiff.families.base import Block, Family, ModelCall, Op, TokenLayout, stacks_named
from tomadiff.families.pixart import patched_layout


def token_layout(model: Any, call: ModelCall) -> TokenLayout:
    """Images ``(B, C, H, W)`` in patches; registers join the text."""
    text = call["encoder_hidden_states"].shape[1] + model.register_tokens.shape[1]
    return TokenLayout.flat(patched_layout(model, call).grids[0], sequences={"joint": (text, 0)})


FAMILY = Family(
    name="aura_flow",
    title="AuraFlow",
    models=("AuraFlowTransformer2DModel",),
    blocks=(
        Block(
            "AuraFlowJointTransformerBlock",
            ops=(Op("attn", "attention", joint=True), Op("ff", "feed_forward")),
            outputs=(1,),
        ),
        Block(
            "AuraFlowSingleTransformerBlock",
            ops=(Op("attn", "attention", sequence="joint"), Op("ff", "feed_forward", sequence="joint")),
            sequence="joint",
        ),
    ),
    stacks=stacks_named("joint_transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("AuraFlowPipeline",),
    note="text stays unmerged",
)
