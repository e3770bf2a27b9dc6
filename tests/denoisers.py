"""Tiny pipelines of denoisers without a family: random weights, text given as embeddings, nothing is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch

WIDTH = 16  # of the text
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}
TEXT = 5  # tokens
Built = tuple[Any, dict[str, Any]]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _flow(**config: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(**config)


def _made(kind: str, transformer: Any, scheduler: Any = None, **others: Any) -> Any:
    """A pipeline with no other component than the denoiser and the scheduler."""
    pipeline = getattr(diffusers, kind)
    known = dict.fromkeys(pipeline._get_signature_keys(pipeline)[0])
    parts = {**known, "transformer": transformer.eval(), "scheduler": scheduler or _flow(), **others}
    return pipeline(**parts)


def sana() -> Built:
    model = diffusers.SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=1, num_cross_attention_heads=2, cross_attention_head_dim=8,
        cross_attention_dim=16, caption_channels=WIDTH, sample_size=8, **HEADS,
    )  # fmt: skip
    text, mask = _random(1, TEXT, WIDTH), torch.ones(1, TEXT)
    words = {"prompt_embeds": text, "prompt_attention_mask": mask}
    words |= {"negative_prompt_embeds": -text, "negative_prompt_attention_mask": mask, "negative_prompt": None}
    size = {"height": 128, "width": 128, "use_resolution_binning": False}
    return _made("SanaPipeline", model, diffusers.DPMSolverMultistepScheduler()), {**words, **size}


def flux2() -> Built:
    model = diffusers.Flux2Transformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, joint_attention_dim=WIDTH, attention_head_dim=16,
        num_attention_heads=2, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4),
    )  # fmt: skip
    return _made("Flux2Pipeline", model), {"prompt_embeds": _random(1, TEXT, WIDTH), "height": 64, "width": 64}


def z_image() -> Built:
    model = diffusers.ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=WIDTH,
        axes_dims=[4, 6, 6], axes_lens=[64, 64, 64],
    )  # fmt: skip
    text = [_random(TEXT, WIDTH)]
    call = {"prompt_embeds": text, "negative_prompt_embeds": [-text[0]], "height": 64, "width": 64}
    return _made("ZImagePipeline", model, _flow(use_dynamic_shifting=True)), call


def cogview4() -> Built:
    model = diffusers.CogView4Transformer2DModel(
        in_channels=4, out_channels=4, num_layers=1, text_embed_dim=WIDTH, time_embed_dim=8, condition_dim=4,
        sample_size=8, rope_axes_dim=(16, 16), **HEADS,
    )  # fmt: skip
    text = _random(1, TEXT, WIDTH)
    scheduler = _flow(use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, time_shift_type="linear")
    call = {"prompt_embeds": text, "negative_prompt_embeds": -text, "height": 64, "width": 64}
    return _made("CogView4Pipeline", model, scheduler), call


def lumina2() -> Built:
    model = diffusers.Lumina2Transformer2DModel(
        sample_size=8, in_channels=4, hidden_size=24, num_layers=1, num_refiner_layers=1, num_attention_heads=2,
        num_kv_heads=1, multiple_of=2, axes_dim_rope=(4, 4, 4), axes_lens=(32, 32, 32), cap_feat_dim=WIDTH,
    )  # fmt: skip
    text, mask = _random(1, TEXT, WIDTH), torch.ones(1, TEXT, dtype=torch.bool)
    call = {"prompt_embeds": text, "prompt_attention_mask": mask}
    call |= {"negative_prompt_embeds": -text, "negative_prompt_attention_mask": mask, "height": 64, "width": 64}
    return _made("Lumina2Pipeline", model), call


def aura_flow() -> Built:
    model = diffusers.AuraFlowTransformer2DModel(
        sample_size=8, num_mmdit_layers=1, num_single_dit_layers=1, joint_attention_dim=WIDTH,
        caption_projection_dim=16, pos_embed_max_size=64, **HEADS,
    )  # fmt: skip
    text, mask = _random(1, TEXT, WIDTH), torch.ones(1, TEXT)
    call = {"prompt_embeds": text, "prompt_attention_mask": mask}
    call |= {"negative_prompt_embeds": -text, "negative_prompt_attention_mask": mask, "height": 64, "width": 64}
    return _made("AuraFlowPipeline", model), call


def ltx() -> Built:
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_layers=1, cross_attention_dim=16, caption_channels=WIDTH, **HEADS
    )
    text, mask = _random(1, TEXT, WIDTH), torch.ones(1, TEXT)
    call = {"prompt_embeds": text, "prompt_attention_mask": mask, "height": 64, "width": 64, "num_frames": 9}
    call |= {"negative_prompt_embeds": -text, "negative_prompt_attention_mask": mask}
    return _made("LTXPipeline", model, _flow(use_dynamic_shifting=True)), call


def hunyuan_video() -> Built:
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, text_embed_dim=WIDTH, pooled_projection_dim=8, rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    call = {"prompt_embeds": _random(1, TEXT, WIDTH), "prompt_attention_mask": torch.ones(1, TEXT)}
    call |= {"pooled_prompt_embeds": _random(1, 8), "height": 32, "width": 32, "num_frames": 5}
    return _made("HunyuanVideoPipeline", model), call


def chroma() -> Built:
    model = diffusers.ChromaTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH, axes_dims_rope=(4, 4, 8), approximator_hidden_dim=32, approximator_layers=1,
        approximator_num_channels=16,
    )  # fmt: skip
    text, mask = _random(1, TEXT, WIDTH), torch.ones(1, TEXT, dtype=torch.bool)
    call = {"prompt_embeds": text, "prompt_attention_mask": mask, "negative_prompt_embeds": -text}
    call |= {"negative_prompt_attention_mask": mask, "height": 64, "width": 64}
    return _made("ChromaPipeline", model), call


def mochi() -> Built:
    model = diffusers.MochiTransformer3DModel(
        num_layers=2, pooled_projection_dim=8, in_channels=4, text_embed_dim=WIDTH, time_embed_dim=8,
        max_sequence_length=TEXT, **HEADS,
    )  # fmt: skip
    text, mask = _random(1, TEXT, WIDTH), torch.ones(1, TEXT, dtype=torch.bool)
    call = {"prompt_embeds": text, "prompt_attention_mask": mask, "negative_prompt_embeds": -text}
    call |= {"negative_prompt_attention_mask": mask, "height": 32, "width": 32, "num_frames": 7}
    return _made("MochiPipeline", model), call


def cogvideox() -> Built:
    model = diffusers.CogVideoXTransformer3DModel(
        in_channels=4, out_channels=4, num_layers=1, text_embed_dim=WIDTH, time_embed_dim=8, sample_width=8,
        sample_height=8, sample_frames=9, max_text_seq_length=TEXT, **HEADS,
    )  # fmt: skip
    text = _random(1, TEXT, WIDTH)
    call = {"prompt_embeds": text, "negative_prompt_embeds": -text, "height": 64, "width": 64, "num_frames": 9}
    return _made("CogVideoXPipeline", model, diffusers.CogVideoXDDIMScheduler()), call


def dit() -> Built:
    model = diffusers.DiTTransformer2DModel(
        sample_size=8, num_layers=1, in_channels=4, out_channels=8, num_embeds_ada_norm=1000, **HEADS
    )
    vae = diffusers.AutoencoderKL(block_out_channels=(4,), norm_num_groups=2, latent_channels=4)
    pipe = diffusers.DiTPipeline(transformer=model.eval(), vae=vae.eval(), scheduler=diffusers.DDIMScheduler())
    return pipe, {"class_labels": [1], "output_type": "np"}


def unconditional() -> Built:
    model = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(8, 8), norm_num_groups=2, layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return diffusers.DDIMPipeline(unet=model.eval(), scheduler=diffusers.DDIMScheduler()), {"output_type": "np"}


BUILDERS: dict[str, Callable[[], Built]] = {
    one.__name__: one
    for one in (sana, flux2, z_image, cogview4, lumina2, aura_flow, ltx, hunyuan_video, chroma, mochi, cogvideox)
} | {"dit": dit, "unconditional": unconditional}


def generate(pipe: Any, call: dict[str, Any], steps: int = 8) -> torch.Tensor:
    """What a pipeline makes, as a tensor."""
    pipe.set_progress_bar_config(disable=True)
    settings = {"output_type": "latent", "num_inference_steps": steps, **call}
    result = pipe(generator=torch.Generator().manual_seed(0), return_dict=False, **settings)[0]
    result = result[0] if isinstance(result, list) else result
    return torch.as_tensor(result)
