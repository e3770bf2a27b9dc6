"""Tiny autoencoders of the classes that pipelines ask for: random weights, images at least as large as latents."""

from __future__ import annotations

from typing import Any

import diffusers
import torch

_FLUX = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.1, "scaling_factor": 1.5}


def kl(channels: int = 4, halvings: int = 1, **more: Any) -> Any:
    """Halves the image so many times; real ones do so three times."""
    levels = halvings + 1
    kinds = {"down_block_types": ("DownEncoderBlock2D",) * levels, "up_block_types": ("UpDecoderBlock2D",) * levels}
    sizes = {"latent_channels": channels, "block_out_channels": (8,) * levels, "norm_num_groups": 2}
    return _made("AutoencoderKL", **sizes, **kinds, **_FLUX, **more)


def flux2(channels: int = 1) -> Any:
    """Keeps the size of the image; pipelines fold latents by two."""
    kinds = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    return _made("AutoencoderKLFlux2", block_out_channels=(4,), norm_num_groups=2, latent_channels=channels, **kinds)


def qwen_image(channels: int = 4) -> Any:
    return _video("AutoencoderKLQwenImage", channels)


def qwen_image21(channels: int = 4) -> Any:
    return _video("AutoencoderKLQwenImage21", channels, base=4, halvings=4, decoder_base_dim=4)


def wan(channels: int = 4) -> Any:
    return _video("AutoencoderKLWan", channels)


def _video(name: str, channels: int, base: int = 3, halvings: int = 3, **more: Any) -> Any:
    """Wan's kind: of eight pixels along a side, or sixteen, and of four frames but the first, one latent."""
    scale = {"latents_mean": [0.0] * channels, "latents_std": [1.0] * channels}
    times = {"temperal_downsample": [False, *[True] * (halvings - 1)], "dim_mult": [1] * (halvings + 1)}
    return _made(name, base_dim=base, z_dim=channels, num_res_blocks=1, **times, **scale, **more)


def ltx(audio_and_video: bool = False) -> Any:
    """LTX's or LTX-2's, whose decoder begins wider."""
    sizes: dict[str, Any] = {"latent_channels": 4, "block_out_channels": (8,) * 4, "layers_per_block": (1,) * 5}
    if audio_and_video:
        sizes |= {"decoder_block_out_channels": (16, 32, 64), "decoder_layers_per_block": (1,) * 4}
        return _made("AutoencoderKLLTX2Video", **sizes, spatial_compression_ratio=32, temporal_compression_ratio=8)
    sizes |= {"decoder_block_out_channels": (8,) * 4, "decoder_layers_per_block": (1,) * 5}
    return _made("AutoencoderKLLTXVideo", **sizes)


def ltx2_audio() -> Any:
    return _made("AutoencoderKLLTX2Audio", base_channels=128, ch_mult=(1, 1, 1), num_res_blocks=1)


def hunyuan_video() -> Any:
    """Four pixels along a side to a latent, where the real one has eight."""
    kinds = {"down_block_types": ("HunyuanVideoDownBlock3D",) * 3, "up_block_types": ("HunyuanVideoUpBlock3D",) * 3}
    sizes = {"latent_channels": 4, "block_out_channels": (8,) * 3, "layers_per_block": 1, "norm_num_groups": 2}
    return _made("AutoencoderKLHunyuanVideo", **sizes, **kinds, spatial_compression_ratio=4)


def hunyuan_video15() -> Any:
    """Four pixels along a side to a latent, where the real one has sixteen."""
    return _made(
        "AutoencoderKLHunyuanVideo15", latent_channels=4, block_out_channels=(8,) * 3, layers_per_block=1,
        spatial_compression_ratio=4,
    )  # fmt: skip


def hunyuan_image() -> Any:
    return _made(
        "AutoencoderKLHunyuanImage", in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(32,) * 4,
        layers_per_block=1, spatial_compression_ratio=8, sample_size=64, scaling_factor=0.75,
    )  # fmt: skip


def hunyuan_image_refiner() -> Any:
    return _made(
        "AutoencoderKLHunyuanImageRefiner", latent_channels=1, block_out_channels=(32,) * 3, layers_per_block=1,
        spatial_compression_ratio=4,
    )  # fmt: skip


def cogvideox() -> Any:
    """Four pixels along a side to a latent, where the real one has eight."""
    kinds = {"down_block_types": ("CogVideoXDownBlock3D",) * 3, "up_block_types": ("CogVideoXUpBlock3D",) * 3}
    sizes = {"latent_channels": 4, "block_out_channels": (8,) * 3, "layers_per_block": 1, "norm_num_groups": 2}
    return _made("AutoencoderKLCogVideoX", **sizes, **kinds)


def _made(name: str, **config: Any) -> Any:
    torch.manual_seed(0)
    return getattr(diffusers, name)(**config).eval()
