"""The exact shapes of published denoisers, without their weights: to count, to time, to try things at full size.

``build("sdxl", "meta")`` takes a second and no memory. On a real device the weights are noise: good for measuring,
and for nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.errors import SettingError, require_choice, require_count
from tomadiff.evaluation.timing.architecture import Architecture, Noise
from tomadiff.evaluation.timing.newer_architectures import NEWER

Device = torch.device | str


def build(name: str, device: Device = "meta", depth: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The model ``name`` in evaluation mode; on the meta device it has shapes alone, elsewhere its weights are noise.

    Args:
        name: a key of :data:`ARCHITECTURES`.
        device: where.
        depth: keep at most this many transformer blocks of every stack; ``None`` keeps all.
        dtype: of the weights.
    """
    import diffusers

    known = _known(name)
    with torch.device("meta"):
        model = getattr(diffusers, known.model)(**_shallow(known, depth)).eval()
    nn.Module.to(model, dtype)  # diffusers' own warns about weights that should stay as they were loaded
    return model if torch.device(device).type == "meta" else _with_noise(model.to_empty(device=device))


def inputs(
    name: str, size: int | None = None, device: Device = "meta", batch: int = 1, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Arguments for one call of ``build(name)``: an image of ``size``² pixels, a prompt, a timestep."""
    known = _known(name)
    size = known.size if size is None else size
    require_count("batch", batch)
    if size < known.step or size % known.step:
        raise SettingError(f"size={size} is not possible for {known.title}; choose a multiple of {known.step}.")
    own = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=own).to(device, dtype)

    return known.inputs(noise, size // 8, batch)


def _known(name: str) -> Architecture:
    require_choice("architecture", name, tuple(ARCHITECTURES))
    return ARCHITECTURES[name]


def _shallow(known: Architecture, depth: int | None) -> dict[str, Any]:
    """The configuration with at most ``depth`` blocks per stack."""
    if depth is None:
        return known.config
    require_count("depth", depth)
    return known.config | {key: _at_most(known.config[key], depth) for key in known.depths}


def _at_most(count: Any, depth: int) -> Any:
    return tuple(min(own, depth) for own in count) if isinstance(count, Iterable) else min(count, depth)


def _with_noise(model: nn.Module) -> nn.Module:
    """Fill a model that holds nothing: matrices with noise that keeps activations in bounds, the rest with 1 and 0.

    One block of noise is repeated, because generating billions of numbers would take a minute.
    """
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dim() < 2:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                fan_in = math.prod(tensor.shape[1:])
                _repeat_into(tensor.view(-1), (noise / math.sqrt(fan_in)).to(tensor))
    return model


def _repeat_into(flat: Tensor, block: Tensor) -> None:
    for part in flat.split(len(block)):
        part.copy_(block[: len(part)])


# ---------------------------------------------------------------------------------------------- what a call is given
def _sd15_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "sample": noise(batch, 4, side, side),
        "timestep": noise(1)[0].fill_(500),
        "encoder_hidden_states": noise(batch, 77, 768),
    }


def _sdxl_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "sample": noise(batch, 4, side, side),
        "timestep": noise(1)[0].fill_(500),
        "encoder_hidden_states": noise(batch, 77, 2048),
        "added_cond_kwargs": {"text_embeds": noise(batch, 1280), "time_ids": noise(batch, 6)},
    }


def _flux_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    """Position ids stay on the CPU on every device: they are read to learn the grid, and the model moves their rows."""
    rows = torch.arange(side // 2)
    places = torch.cartesian_prod(torch.zeros(1, dtype=torch.long), rows, rows)
    return {
        "hidden_states": noise(batch, len(places), 64),
        "encoder_hidden_states": noise(batch, 512, 4096),
        "pooled_projections": noise(batch, 768),
        "timestep": noise(batch).fill_(0.5),
        "guidance": noise(batch).fill_(3.5),
        "img_ids": places.float(),
        "txt_ids": torch.zeros(512, 3),
    }


def _sd3_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, 16, side, side),
        "encoder_hidden_states": noise(batch, 333, 4096),
        "pooled_projections": noise(batch, 2048),
        "timestep": noise(batch).fill_(500),
    }


def _pixart_inputs(noise: Noise, side: int, batch: int) -> dict[str, Any]:
    return {
        "hidden_states": noise(batch, 4, side, side),
        "encoder_hidden_states": noise(batch, 300, 4096),
        "timestep": noise(batch).fill_(500),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


# ---------------------------------------------------------------------------------------------- the models
_SDXL = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
_SD15 = {
    "sample_size": 64,
    "block_out_channels": (320, 640, 1280, 1280),
    "transformer_layers_per_block": 1,
    "attention_head_dim": 8,
    "cross_attention_dim": 768,
}
_FLUX = {
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
}
_SD3 = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 38,
    "num_attention_heads": 38,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 2432,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
    "qk_norm": "rms_norm",
}
_PIXART = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "cross_attention_dim": 1152,
    "caption_channels": 4096,
    "interpolation_scale": 2,
    "use_additional_conditions": False,
}

ARCHITECTURES: dict[str, Architecture] = {
    "sdxl": Architecture(
        "SDXL", "UNet2DConditionModel", _SDXL, ("transformer_layers_per_block",), 1024, 32, _sdxl_inputs
    ),
    "flux": Architecture(
        "Flux.1-dev", "FluxTransformer2DModel", _FLUX, ("num_layers", "num_single_layers"), 1024, 16, _flux_inputs
    ),
    "sd3": Architecture("SD3.5 Large", "SD3Transformer2DModel", _SD3, ("num_layers",), 1024, 16, _sd3_inputs),
    "sd15": Architecture(
        "Stable Diffusion 1.5", "UNet2DConditionModel", _SD15, ("transformer_layers_per_block",), 512, 64, _sd15_inputs
    ),
    "pixart": Architecture("PixArt-Σ", "PixArtTransformer2DModel", _PIXART, ("num_layers",), 1024, 16, _pixart_inputs),
} | NEWER
"""By the name that the command line uses."""
