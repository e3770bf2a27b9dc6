"""FLUX.2 dev and klein: joint blocks with the image apart, then single blocks on text and image in one sequence."""

from __future__ import annotations

from torch import Tensor, nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, Rows, TokenLayout, stacks_named
from tomadiff.families.flux import grid_of

ROTARY = Rotary("image_rotary_emb", text_first=True)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """Ids ``(B, N, 4)``: time, row, column, layer. Reference images have times above 0; with a K/V cache they come
    first, else last."""
    ids = call["img_ids"]
    if not isinstance(ids, Tensor):
        return None
    ids = (ids[0] if ids.dim() == 3 else ids).detach()
    own = ids[:, 0] == 0
    count, head = int(own.sum()), int(own.int().argmax())
    image = ids[head : head + count]
    grid = grid_of(image[:, 1], image[:, 2]) if count and bool(own[head : head + count].all()) else None
    if grid is None:
        return None
    tail, text = len(ids) - head - count, call["encoder_hidden_states"].shape[1]
    return TokenLayout.flat(grid, tail, head=head, sequences={"joint": (text + head, tail)})


FAMILY = Family(
    name="flux2",
    title="FLUX.2",
    models=("Flux2Transformer2DModel",),
    blocks=(
        Block(
            "Flux2TransformerBlock",
            ops=(
                Op("attn", "attention", ROTARY, joint=True, whole="kv_cache"),
                Op("ff", "feed_forward"),
            ),
            rotary=ROTARY,
            outputs=(1,),
            rows=(Rows("temb_mod_img", axis=1, dims=3),),
            whole="joint_attention_kwargs",
        ),
        Block(
            "Flux2SingleTransformerBlock",
            ops=(Op("attn", "attention", ROTARY, sequence="joint", whole="kv_cache"),),
            rotary=ROTARY,
            sequence="joint",
            rows=(Rows("temb_mod", axis=1, dims=3),),
            whole="joint_attention_kwargs",
        ),
    ),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("Flux2Pipeline", "Flux2KleinPipeline", "Flux2KleinKVPipeline", "Flux2KleinInpaintPipeline"),
    share="batch",
    reads=("img_ids",),
    note="text, reference images and their K/V cache stay unmerged",
)
