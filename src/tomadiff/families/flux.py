"""Flux.1 dev, schnell and Kontext: joint blocks, then single blocks whose feed-forward cannot be wrapped alone."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.engine.arguments import Rotary
from tomadiff.families.base import Block, Call, Family, Op, Scene, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("image_rotary_emb", axis=0, text_first=True)
_TAKE_MASKS = ("native", "_native_efficient", "_native_math", "flex", "xformers")


def scene(_: nn.Module, call: Call) -> Scene | None:
    """Rows and columns from the position ids; tokens of reference images (Kontext) come behind and stay whole."""
    ids = call["img_ids"]
    if not isinstance(ids, Tensor):
        return None
    return _read_ids(ids[0] if ids.dim() == 3 else ids)


def _read_ids(ids: Tensor) -> Scene | None:
    """``(N, 3)`` ids ``(image, row, column)`` → scene; read once per tensor, since reading waits for the GPU."""
    known, version = _LAST.get("ids"), None if ids.is_inference() else ids._version
    if known is not None and known[0]() is ids and known[1] == version:
        scene: Scene | None = known[2]
        return scene
    scene = _decode(ids.detach())
    _LAST["ids"] = (weakref.ref(ids), version, scene)
    return scene


_LAST: dict[str, Any] = {}


def _decode(ids: Tensor) -> Scene | None:
    own = int((ids[:, 0] == 0).sum())
    if own == 0:
        return None
    rows, columns = ids[:own, 1], ids[:own, 2]
    height, width = (int(axis.max() - axis.min()) + 1 for axis in (rows, columns))
    raster = torch.arange(own, device=ids.device)
    ordered = height * width == own and bool(((rows - rows.min()) * width + (columns - columns.min()) == raster).all())
    return Scene.flat(Grid(height, width), tail=len(ids) - own) if ordered else None


def takes_bias(model: Any) -> bool:
    """Whether the backend that attention runs on takes a mask; Flash, Sage and others refuse one."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    blocks = [*model.transformer_blocks, *model.single_transformer_blocks]
    chosen = getattr(blocks[0].attn.processor, "_attention_backend", None)
    return (chosen or Registry.get_active_backend()[0]) in _TAKE_MASKS


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
    scene=scene,
    pipelines=("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxKontextPipeline"),
    skip=10 / 57,
    share="batch",
    defaults={"quota": "shared", "proportional": True},  # see docs/method.md
    takes_bias=takes_bias,
    note="reference tokens of Kontext stay unmerged",
)
