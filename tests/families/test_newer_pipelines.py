"""The newer families through their pipelines: text given as embeddings, latents as they come out of the loop."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

import tomadiff
from tests import newer
from tests.newer import TEXT, WIDTH

STEPS = 3
Drawn = tuple[Any, Callable[[], Tensor]]


def embeddings(*shape: int, sign: int = 1) -> Tensor:
    return sign * torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def usual(kind: str, model: Any, call: dict[str, Any], scheduler: Any = None, **parts: Any) -> Drawn:
    """A pipeline with no other component than these."""
    pipeline = getattr(diffusers, kind)
    known = dict.fromkeys(pipeline._get_signature_keys(pipeline)[0])
    scheduler = scheduler or diffusers.FlowMatchEulerDiscreteScheduler()
    pipe = pipeline(**{**known, "transformer": model, "scheduler": scheduler, **parts})
    pipe.set_progress_bar_config(disable=True)
    settings = {"output_type": "latent", "num_inference_steps": STEPS, "return_dict": False, **call}

    def generate() -> Tensor:
        result = pipe(generator=torch.Generator().manual_seed(0), **settings)[0]
        return torch.stack(list(result)) if isinstance(result, list) else result

    return pipe, generate


def modular(blocks: str, call: dict[str, Any], **parts: Any) -> Drawn:
    """A modular pipeline that begins behind the text encoder and ends before the decoder."""
    module, _, name = blocks.rpartition(".")
    pipe = getattr(import_module(f"diffusers.modular_pipelines.{module}"), name)().init_pipeline()
    pipe.update_components(**parts)
    pipe.set_progress_bar_config(disable=True)

    def generate() -> Tensor:
        rng = torch.Generator().manual_seed(0)
        return pipe(generator=rng, num_inference_steps=STEPS, output="latents", **call)

    return pipe, generate


def z_image() -> Drawn:
    """Guidance in one batch, texts of unequal lengths."""
    texts = {"prompt_embeds": [embeddings(TEXT, WIDTH)], "negative_prompt_embeds": [embeddings(TEXT + 32, WIDTH)]}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return usual("ZImagePipeline", newer.z_image(), {**texts, "height": 128, "width": 160}, scheduler)


def flux2() -> Drawn:
    call = {"prompt_embeds": embeddings(1, TEXT, WIDTH), "height": 128, "width": 160}
    return usual("Flux2Pipeline", newer.flux2(), call)


def flux2_klein() -> Drawn:
    """Guidance in two passes, texts of unequal lengths."""
    texts = {"prompt_embeds": embeddings(1, TEXT, WIDTH), "negative_prompt_embeds": embeddings(1, TEXT + 2, WIDTH)}
    kinds = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    vae = diffusers.AutoencoderKLFlux2(block_out_channels=(4,), norm_num_groups=2, latent_channels=1, **kinds).eval()
    call = {**texts, "height": 16, "width": 20, "guidance_scale": 4.0}
    return usual("Flux2KleinPipeline", newer.flux2(), call, vae=vae)


def masked(length: int, *shape: int) -> dict[str, Tensor]:
    """Embeddings of two texts, the second one with less padding."""
    texts = {}
    for place, name in enumerate(("prompt_embeds", "negative_prompt_embeds")):
        texts[name] = embeddings(1, length, *shape, sign=1 - 2 * place)
        texts[f"{name}_mask"] = torch.arange(length)[None] < length - 2 + place
    return texts


def krea2() -> Drawn:
    """Guidance in two passes."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    call = {**masked(TEXT, 2, WIDTH), "height": 128, "width": 160}
    return usual("Krea2Pipeline", newer.krea2(), call, scheduler)


def qwen_image21(use_kv_cache: bool = True) -> Drawn:
    """Guidance in two passes, each with a cache of its own."""
    call = {**masked(TEXT, WIDTH), "height": 128, "width": 160, "use_kv_cache": use_kv_cache}
    call |= {f"{name}image_pad_mask": torch.zeros(1, TEXT, dtype=torch.bool) for name in ("", "negative_")}
    parts = {"transformer": newer.qwen_image21(), "scheduler": diffusers.FlowMatchEulerDiscreteScheduler()}
    return modular("qwenimage21.modular_blocks_qwenimage21.QwenImage21CoreDenoiseStep", call, **parts)


def qwen_image21_without_cache() -> Drawn:
    return qwen_image21(use_kv_cache=False)


def anima() -> Drawn:
    """Guidance in two passes."""
    texts: dict[str, Any] = {}
    for name, sign in (("", 1), ("negative_", -1)):
        texts |= {f"{name}qwen_prompt_embeds": embeddings(1, TEXT, WIDTH, sign=sign)}
        texts |= {f"{name}qwen_attention_mask": torch.ones(1, TEXT), f"{name}t5_attention_mask": torch.ones(1, TEXT)}
        texts |= {f"{name}t5_input_ids": torch.arange(TEXT)[None]}
    torch.manual_seed(0)
    conditioner = diffusers.AnimaTextConditioner(
        source_dim=WIDTH, target_dim=WIDTH, model_dim=WIDTH, num_layers=1, num_attention_heads=2, target_vocab_size=32
    ).eval()
    parts = {"transformer": newer.cosmos(), "scheduler": diffusers.FlowMatchEulerDiscreteScheduler()}
    call = {**texts, "height": 128, "width": 160}
    blocks = "anima.modular_blocks_anima.AnimaCoreDenoiseStep"
    return modular(blocks, call, text_conditioner=conditioner, **parts)


def flux3() -> Drawn:
    """Guidance in two passes, texts of unequal lengths."""
    texts = {"prompt_embeds": embeddings(1, TEXT, WIDTH), "negative_prompt_embeds": embeddings(1, TEXT + 2, WIDTH)}
    call = {**texts, "height": 128, "width": 160}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=6.93)
    return modular(
        "flux3.modular_blocks_flux3.Flux3CoreDenoiseStep", call, transformer=newer.flux3(), scheduler=scheduler
    )


def flux3_distilled() -> Drawn:
    """With a reference image."""
    call = {"prompt_embeds": embeddings(1, TEXT, WIDTH), "height": 128, "width": 160}
    call |= {"image_cond_latents": [embeddings(1, 4, 4, 6)]}
    parts = {"transformer": newer.flux3(flow_map=True), "scheduler": diffusers.FlowMatchEulerDiscreteScheduler()}
    blocks = "flux3.modular_blocks_flux3_distilled.Flux3DistilledImageConditionedCoreDenoiseStep"
    return modular(blocks, call, **parts)


BUILDERS = {
    "ZImagePipeline": (z_image,),
    "Flux2Pipeline": (flux2,),
    "Flux2KleinPipeline": (flux2_klein,),
    "Krea2Pipeline": (krea2,),
    "QwenImage21ModularPipeline": (qwen_image21, qwen_image21_without_cache),
    "AnimaModularPipeline": (anima,),
    "Flux3ModularPipeline": (flux3, flux3_distilled),
}
CASES = [
    pytest.param(build, id=build.__name__, marks=newer.needs(name)) for name, own in BUILDERS.items() for build in own
]


@pytest.mark.parametrize("build", CASES)
def test_pipeline_merges_and_is_restored(build: Callable[[], Drawn]) -> None:
    pipe, generate = build()
    plain = generate()
    with tomadiff.apply(pipe, 0.5) as patch:
        merged = generate()
        assert torch.equal(generate(), merged), "a second image starts afresh"
        report = patch.report().models[0]
        assert all(level.tokens_after < level.tokens_before for level in report.levels)
        assert not report.bypassed
    assert merged.isfinite().all()
    assert not torch.equal(merged, plain)
    assert torch.equal(generate(), plain)
