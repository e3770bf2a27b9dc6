"""Tiny denoisers of the families that came with later versions of diffusers: random weights, two blocks of a kind."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

WIDTH = 16  # of the text
TEXT = 5  # tokens


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where diffusers is older than the model."""
    return pytest.mark.skipif(not hasattr(diffusers, name), reason=f"this diffusers has no {name}")


def _made(name: str, **config: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(diffusers, name)(**config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gates that begin at zero would hide what blocks do
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def z_image() -> Any:
    return _made(
        "ZImageTransformer2DModel", in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2,
        cap_feat_dim=WIDTH, axes_dims=[4, 6, 6], axes_lens=[128, 64, 64],
    )  # fmt: skip


def flux2() -> Any:
    return _made(
        "Flux2Transformer2DModel", in_channels=4, num_layers=1, num_single_layers=2, joint_attention_dim=WIDTH,
        attention_head_dim=16, num_attention_heads=2, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4),
    )  # fmt: skip


def flux3(flow_map: bool = False) -> Any:
    return _made(
        "Flux3Transformer2DModel", in_channels=4, cond_in_channels=4, num_layers=1, num_single_layers=2,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=WIDTH, timestep_channels=16,
        axes_dims_rope=(4, 4, 4, 4), flow_map=flow_map,
    )  # fmt: skip


def krea2() -> Any:
    return _made(
        "Krea2Transformer2DModel", in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=32, timestep_embed_dim=16, text_hidden_dim=WIDTH, num_text_layers=2,
        text_num_attention_heads=2, text_num_key_value_heads=2, text_intermediate_size=16, num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip


def qwen_image21() -> Any:
    return _made(
        "QwenImage21Transformer2DModel", in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, context_in_dim=WIDTH, mlp_ratio=2, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip


def cosmos() -> Any:
    return _made(
        "CosmosTransformer3DModel", in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
        attention_head_dim=16, mlp_ratio=2.0, text_embed_dim=WIDTH, adaln_lora_dim=4, max_size=(4, 32, 64),
        patch_size=(1, 2, 2), concat_padding_mask=False, extra_pos_embed_type=None,
    )  # fmt: skip
