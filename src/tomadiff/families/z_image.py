"""Z-Image and Z-Image-Turbo: one sequence, the image padded to a multiple of 32 tokens, then the text."""

from __future__ import annotations

from torch import Tensor, nn

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("freqs_cis", position=1, axis=1)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """Images ``x`` and texts ``cap_feats``, one of each per sample; with references, ``x`` is a list of lists."""
    images, texts = call["x"], call["cap_feats"]
    if not isinstance(images[0], Tensor) or len({image.shape for image in images}) > 1:
        return None
    patch, frames = call["patch_size"] or 2, images[0].shape[1] // (call["f_patch_size"] or 1)
    grid = Grid(images[0].shape[2] // patch, images[0].shape[3] // patch, frames)
    return TokenLayout.flat(grid, tail=_padded(grid.tokens) - grid.tokens + max(_padded(len(text)) for text in texts))


def _padded(length: int) -> int:
    return -(-length // 32) * 32


FAMILY = Family(
    name="z_image",
    title="Z-Image",
    models=("ZImageTransformer2DModel",),
    blocks=(
        Block(
            "ZImageTransformerBlock",
            ops=(
                Op("attention", "attention", ROTARY, mask=Mask("attention_mask")),
                Op("feed_forward", "feed_forward"),
            ),
            rotary=ROTARY,
            mask=Mask("attn_mask", position=0),
        ),
    ),
    stacks=stacks_named("layers"),
    token_layout=token_layout,
    pipelines=("ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline", "ZImageControlNetPipeline"),
    image="x",
    timestep="t",
    note="text and the refiner blocks stay unmerged; so do calls with reference images (omni), which "
    "have no grid in common",
)
