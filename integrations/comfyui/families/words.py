"""What several families share."""

from __future__ import annotations

from typing import Any

from tomadiff.families import ModelCall
from tomadiff.merging.grid import Grid

CALL = {"x": "sample", "context": "encoder_hidden_states"}  # what ComfyUI's models call their image and their text
TOKENS = {"x": "hidden_states"}  # the same for most of their layers
ADDITIVE = (  # attention of ComfyUI that takes a bias of its keys; Flash and Sage take none
    "attention_basic",
    "attention_pytorch",
    "attention_split",
    "attention_sub_quad",
    "attention_xformers",
)


def patches(size: int, patch: int) -> int:
    """Models fill up what does not divide evenly."""
    return -(-size // patch)


def grid_of(image: Any, patch: int, frames: int = 1) -> Grid:
    """The grid of an image ``(B, C, …, H, W)``."""
    return Grid(patches(image.shape[-2], patch), patches(image.shape[-1], patch), frames)


def text_length(call: ModelCall) -> int:
    """Text tokens."""
    return int(call["encoder_hidden_states"].shape[1])


def reference_tokens(call: ModelCall, patch: int) -> int:
    """Tokens of the images to edit from."""
    return sum(grid_of(one, patch).tokens for one in call["ref_latents"] or ())
