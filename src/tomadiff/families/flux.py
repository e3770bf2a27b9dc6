"""Flux.1 dev, schnell and Kontext: joint blocks, then single blocks whose feed-forward cannot be wrapped alone."""

from __future__ import annotations

from torch import Tensor, nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("image_rotary_emb", axis=0, text_first=True)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """Rows and columns from ids ``(N, 3)``: image, row, column. Reference images (Kontext) come behind, whole."""
    ids = call["img_ids"]
    if not isinstance(ids, Tensor):
        return None
    ids = (ids[0] if ids.dim() == 3 else ids).detach()
    own = int((ids[:, 0] == ids[0, 0]).sum())
    grid = grid_of(ids[:own, 1], ids[:own, 2])
    return None if grid is None else TokenLayout.flat(grid, tail=len(ids) - own)


def grid_of(rows: Tensor, columns: Tensor) -> Grid | None:
    """The grid that ids ``(N,)`` of rows and columns are the raster of, in steps of any size; ``None`` if of none."""
    width = int((rows == rows[:1]).sum())
    if width == 0 or len(rows) % width:
        return None
    rows, columns = rows.view(-1, width), columns.view(-1, width)
    ordered = (rows == rows[:, :1]).all() & (columns == columns[:1]).all()
    ordered &= (rows[:, 0].diff() > 0).all() & (columns[0].diff() > 0).all()
    return Grid(len(rows), width) if bool(ordered) else None


FAMILY = Family(
    name="flux",
    title="Flux.1",
    models=("FluxTransformer2DModel",),
    blocks=(
        Block(
            "FluxTransformerBlock",
            ops=(
                Op("attn", "attention", ROTARY, (0, 2), joint=True, key_bias="attention_mask"),
                Op("ff", "feed_forward"),
            ),
            rotary=ROTARY,
            outputs=(1,),
            key_bias="joint_attention_kwargs",
        ),
        Block(
            "FluxSingleTransformerBlock",
            rotary=ROTARY,
            outputs=(1,),
            key_bias="joint_attention_kwargs",
            pooled=(Op("attn", "attention", ROTARY, joint=True),),
        ),
    ),
    stacks=stacks_named("transformer_blocks", "single_transformer_blocks"),
    token_layout=token_layout,
    pipelines=("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxKontextPipeline"),
    skip=10 / 57,
    share="batch",
    defaults={"quota": "shared", "proportional": True},  # see docs/method.md
    bias_backends=("native", "_native_efficient", "_native_math", "flex", "xformers"),  # Flash and Sage take no mask
    reads=("img_ids",),
    note="text and reference images (Kontext) stay unmerged; so do the first 10 of 57 blocks by default, as in the "
    "paper",
)
