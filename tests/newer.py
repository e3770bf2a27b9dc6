"""Tiny denoisers of the families that came with later versions of diffusers: random weights, two blocks of a kind."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

WIDTH = 16  # of the text
TEXT = 5  # tokens


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where diffusers is older than the model, or transformers than its pipeline."""
    return pytest.mark.skipif(not _is_there(name), reason=f"this diffusers has no {name}")


def _is_there(name: str) -> bool:
    try:
        return hasattr(diffusers, name)
    except RuntimeError:  # a pipeline of a text encoder that is not there
        return False


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


def cosmos(channels: int = 4) -> Any:
    return _made(
        "CosmosTransformer3DModel", in_channels=channels, out_channels=4, num_layers=2, num_attention_heads=2,
        attention_head_dim=16, mlp_ratio=2.0, text_embed_dim=WIDTH, adaln_lora_dim=4, max_size=(4, 32, 64),
        patch_size=(1, 2, 2), concat_padding_mask=False, extra_pos_embed_type=None,
    )  # fmt: skip


def wan(channels: int = 4) -> Any:
    return _made("WanTransformer3DModel", **_WAN | {"in_channels": channels})


def wan_vace(control: int = 8) -> Any:
    return _made("WanVACETransformer3DModel", **_WAN, vace_layers=[0, 1], vace_in_channels=control)


def wan_animate() -> Any:
    return _made(
        "WanAnimateTransformer3DModel", **_WAN | {"in_channels": 12}, latent_channels=4, image_dim=8,
        added_kv_proj_dim=24, motion_encoder_channel_sizes={"8": 8, "4": 8}, motion_encoder_size=8, motion_style_dim=8,
        motion_dim=4, motion_encoder_dim=8, face_encoder_hidden_dim=8, face_encoder_num_heads=2,
        inject_face_latents_blocks=2,
    )  # fmt: skip


def chrono_edit(channels: int = 4) -> Any:
    return _made("ChronoEditTransformer3DModel", **_WAN | {"in_channels": channels}, image_dim=8, added_kv_proj_dim=24)


def skyreels(frames_per_block: int = 1, channels: int = 4, image: int | None = None) -> Any:
    begun = {"in_channels": channels, "image_dim": image, "added_kv_proj_dim": image and 24}
    return _made("SkyReelsV2Transformer3DModel", **_WAN | begun, num_frame_per_block=frames_per_block)


_WAN: dict[str, Any] = {
    "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4,
    "text_dim": WIDTH, "freq_dim": 16, "ffn_dim": 32, "num_layers": 2, "rope_max_seq_len": 64,
}  # fmt: skip


def ltx() -> Any:
    return _made(
        "LTXVideoTransformer3DModel", in_channels=4, out_channels=4, num_layers=2, cross_attention_dim=16,
        caption_channels=WIDTH, **_HEADS,
    )  # fmt: skip


def ltx2(rope_type: str = "interleaved", audio: int = 4) -> Any:
    return _made(
        "LTX2VideoTransformer3DModel", in_channels=4, out_channels=4, num_layers=2, cross_attention_dim=16,
        caption_channels=WIDTH, audio_in_channels=audio, audio_out_channels=audio, audio_num_attention_heads=2,
        audio_attention_head_dim=8, audio_cross_attention_dim=16, perturbed_attn=True, rope_type=rope_type, **_HEADS,
    )  # fmt: skip


def chroma() -> Any:
    return _made(
        "ChromaTransformer2DModel", in_channels=4, num_layers=1, num_single_layers=2, joint_attention_dim=WIDTH,
        attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 4, 8), approximator_hidden_dim=32,
        approximator_layers=1, approximator_num_channels=16,
    )  # fmt: skip


def flux_kin(name: str, channels: int = 4, **config: Any) -> Any:
    """Models with Flux's blocks."""
    return _made(
        name, in_channels=channels, num_layers=1, num_single_layers=2, joint_attention_dim=WIDTH, attention_head_dim=16,
        num_attention_heads=2, axes_dims_rope=(4, 4, 8), **config,
    )  # fmt: skip


def hunyuan_video(condition: str | None = None, pooled: int = 8, channels: int = 4) -> Any:
    return _made(
        "HunyuanVideoTransformer3DModel", in_channels=channels, out_channels=4, num_attention_heads=2,
        attention_head_dim=10, num_layers=1, num_single_layers=2, num_refiner_layers=1, text_embed_dim=WIDTH,
        pooled_projection_dim=pooled, rope_axes_dim=(2, 4, 4), image_condition_type=condition,
    )  # fmt: skip


def hunyuan_video15(channels: int = 4, target: int = 640) -> Any:
    return _made(
        "HunyuanVideo15Transformer3DModel", in_channels=channels, out_channels=4, num_attention_heads=2,
        attention_head_dim=10, num_layers=2, num_refiner_layers=1, text_embed_dim=WIDTH, text_embed_2_dim=8,
        image_embed_dim=8, rope_axes_dim=(2, 4, 4), patch_size=2, target_size=target,
    )  # fmt: skip


def hunyuan_image(refiner: bool = False, out: int = 4) -> Any:
    axes = {"patch_size": (1, 1, 1), "rope_axes_dim": (4, 2, 2)} if refiner else {"rope_axes_dim": (4, 4)}
    return _made(
        "HunyuanImageTransformer2DModel", in_channels=4, out_channels=out, num_attention_heads=2, attention_head_dim=8,
        num_layers=1, num_single_layers=2, num_refiner_layers=1, text_embed_dim=WIDTH, **axes,
    )  # fmt: skip


def cogview4(channels: int = 4) -> Any:
    return _made(
        "CogView4Transformer2DModel", in_channels=channels, out_channels=4, num_layers=2, text_embed_dim=WIDTH,
        time_embed_dim=8, condition_dim=4, sample_size=8, rope_axes_dim=(16, 16), **_HEADS,
    )  # fmt: skip


def glm_image() -> Any:
    return _made(
        "GlmImageTransformer2DModel", in_channels=4, out_channels=4, num_layers=2, text_embed_dim=WIDTH,
        time_embed_dim=8, condition_dim=4, prior_vq_quantizer_codebook_size=32, **_HEADS,
    )  # fmt: skip


def lumina2() -> Any:
    return _made(
        "Lumina2Transformer2DModel", sample_size=8, in_channels=4, hidden_size=24, num_layers=2, num_refiner_layers=1,
        num_attention_heads=2, num_kv_heads=1, multiple_of=2, axes_dim_rope=(4, 4, 4), axes_lens=(64, 64, 64),
        cap_feat_dim=WIDTH,
    )  # fmt: skip


def ernie_image() -> Any:
    return _made(
        "ErnieImageTransformer2DModel", hidden_size=32, num_attention_heads=2, num_layers=2, ffn_hidden_size=48,
        in_channels=4, out_channels=4, text_in_dim=WIDTH, rope_axes_dim=(4, 6, 6),
    )  # fmt: skip


def cogvideox(channels: int = 4) -> Any:
    return _made(
        "CogVideoXTransformer3DModel", in_channels=channels, out_channels=4, num_layers=2, text_embed_dim=WIDTH,
        time_embed_dim=8, sample_width=16, sample_height=16, sample_frames=5, max_text_seq_length=TEXT,
        use_rotary_positional_embeddings=True, num_attention_heads=2, attention_head_dim=16,
    )  # fmt: skip


def aura_flow() -> Any:
    return _made(
        "AuraFlowTransformer2DModel", sample_size=8, num_mmdit_layers=1, num_single_dit_layers=2,
        joint_attention_dim=WIDTH, caption_projection_dim=16, pos_embed_max_size=1024, **_HEADS,
    )  # fmt: skip


_HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 8}
