"""Denoisers of 2025 and 2026, as published; where a model card names no other, diffusers' defaults are its sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tomadiff.evaluation.timing.architecture import Architecture, Noise

_FLUX3 = {"num_layers": 5, "num_single_layers": 28}
_KLEIN = {
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
_ANIMA = {  # as Cosmos-Predict2 2B, whose padding mask is one more channel
    "in_channels": 17,
    "concat_padding_mask": False,
    "num_layers": 28,
    "num_attention_heads": 16,
    "rope_scale": (1.0, 4.0, 4.0),
    "extra_pos_embed_type": None,
}
_QWEN21 = {
    "num_layers": 32,
    "causal_condition": False,  # one modulation for text and image, as many FLOPs: the meta device reads no masks
}


def _ids(side: int, step: float = 1.0) -> Tensor:
    """``(N, 4)``: time, row, column, layer. On the CPU on every device: they are read to learn the grid."""
    places, zero = step * torch.arange(side // 2), torch.zeros(1)
    return torch.cartesian_prod(zero, places, places, zero)


def _flux3_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, (side // 2) ** 2, 128),
        "encoder_hidden_states": noise(batch, 512, 20480),
        "timestep": noise(batch).fill_(0.5),
        "img_ids": _ids(side, 0.5),
        "txt_ids": torch.zeros(512, 4),
    }


def _flux2_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, (side // 2) ** 2, 128),
        "encoder_hidden_states": noise(batch, 512, 7680),
        "timestep": noise(batch).fill_(0.5),
        "img_ids": _ids(side),
        "txt_ids": torch.zeros(512, 4),
    }


def _z_image_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "x": list(noise(batch, 16, 1, side, side)),
        "t": noise(batch).fill_(0.5),
        "cap_feats": list(noise(batch, 128, 2560)),
    }


def _krea2_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, (side // 2) ** 2, 64),
        "encoder_hidden_states": noise(batch, 512, 12, 2560),
        "timestep": noise(batch).fill_(0.5),
        "position_ids": torch.cat([torch.zeros(512, 3), _ids(side)[:, :3]]),
    }


def _qwen_image21_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    """A call without a cache: text and image in one sequence."""
    tokens = (side // 2) ** 2
    slots = torch.cat([torch.zeros(512, dtype=torch.bool), torch.ones(tokens // 4, dtype=torch.bool)])
    return {
        "hidden_states": noise(batch, tokens, 64),
        "encoder_hidden_states": noise(batch, 512, 4096),
        "timestep": noise(batch).fill_(0.5),
        "img_shapes": [[(1, side // 2, side // 2)]] * batch,
        "img_mask": slots.expand(batch, -1),
    }


def _anima_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, 17, 1, side, side),
        "timestep": noise(batch).fill_(0.5),
        "encoder_hidden_states": noise(batch, 512, 1024),
    }


_DEPTHS = ("num_layers", "num_single_layers")

NEWER = {
    "flux3": Architecture("FLUX.3 Klein", "Flux3Transformer2DModel", _FLUX3, _DEPTHS, 1024, 16, _flux3_inputs),
    "z-image": Architecture(
        "Z-Image", "ZImageTransformer2DModel", {"n_layers": 30}, ("n_layers",), 1024, 16, _z_image_inputs
    ),
    "flux2-klein": Architecture("FLUX.2 klein 4B", "Flux2Transformer2DModel", _KLEIN, _DEPTHS, 1024, 16, _flux2_inputs),
    "qwen-image-2.1": Architecture(
        "Qwen-Image 2.1",
        "QwenImage21Transformer2DModel",
        _QWEN21,
        ("num_layers",),
        1024,
        32,
        _qwen_image21_inputs,
    ),
    "anima": Architecture("Anima", "CosmosTransformer3DModel", _ANIMA, ("num_layers",), 1024, 16, _anima_inputs),
    "krea2": Architecture(
        "Krea 2", "Krea2Transformer2DModel", {"num_layers": 28}, ("num_layers",), 1024, 16, _krea2_inputs
    ),
}
"""By the name that the command line uses."""
