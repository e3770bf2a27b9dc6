"""Pipelines of the newer families: text given as embeddings, latents as they come out of the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import diffusers
import torch
from torch import Tensor

from tests import newer, tiny
from tests.newer import TEXT, WIDTH

Call = dict[str, Any]


@dataclass(frozen=True)
class Newer:
    """How to build a pipeline, and how to call it.

    Attributes:
        since: a name of diffusers that versions have which know the model.
        make: the pipeline.
        texts: the arguments that stand for so many prompts.
        guided, unguided: the arguments with which it runs with and without guidance.
        batches: whether it generates several images at once.
        pixels: along a side of a token.
    """

    since: str
    make: Callable[[], Any]
    texts: Callable[[int], Call]
    guided: Call = field(default_factory=dict)
    unguided: Call = field(default_factory=dict)
    batches: bool = True
    pixels: int = 16


def build(name: str) -> tiny.Tiny:
    """A fresh pipeline, set up for one guided image of 8×10 tokens in three steps."""
    known = KINDS[name]
    pipe = known.make()
    pipe.set_progress_bar_config(disable=True)
    size = {"height": 8 * known.pixels, "width": 10 * known.pixels, "num_inference_steps": 3}
    return tiny.Tiny(pipe, {**size, **output_of(pipe), **known.texts(1), **known.guided})


def output_of(pipe: Any) -> Call:
    """The arguments with which latents come out."""
    return {"output": "latents"} if is_modular(pipe) else {"output_type": "latent"}


def is_modular(pipe: Any) -> bool:
    """Whether a pipeline is made of blocks."""
    return isinstance(pipe, diffusers.ModularPipeline)


def latents_of(result: Any) -> Tensor:
    """What a call of any pipeline returns, as one tensor."""
    for name in ("frames", "images"):
        result = getattr(result, name, result)
    return torch.stack(list(result)) if isinstance(result, list) else result


# ---------------------------------------------------------------------------------------------- texts
def embeddings(images: int, *shape: int, sign: int = 1) -> Tensor:
    return sign * torch.randn(images, *shape, generator=torch.Generator().manual_seed(len(shape)))


def _plain(images: int) -> Call:
    return {"prompt_embeds": embeddings(images, TEXT, WIDTH)}


def _unequal(images: int, more: int = 2) -> Call:
    """The other pass has a longer text."""
    return {**_plain(images), "negative_prompt_embeds": embeddings(images, TEXT + more, WIDTH)}


def _listed(images: int) -> Call:
    return {name: list(texts) for name, texts in _unequal(images, more=32).items()}


def _masked(images: int, *shape: int) -> Call:
    """The other pass has a text with less padding."""
    texts = {}
    for place, name in enumerate(("prompt_embeds", "negative_prompt_embeds")):
        texts[name] = embeddings(images, TEXT, *shape, sign=1 - 2 * place)
        texts[f"{name}_mask"] = (torch.arange(TEXT)[None] < TEXT - 2 + place).repeat(images, 1)
    return texts


def _cached(images: int, use_kv_cache: bool) -> Call:
    pads = {f"{name}image_pad_mask": torch.zeros(images, TEXT, dtype=torch.bool) for name in ("", "negative_")}
    return {**_masked(images, WIDTH), **pads, "use_kv_cache": use_kv_cache}


def _two_encoders(images: int) -> Call:
    texts: Call = {}
    for name, sign in (("", 1), ("negative_", -1)):
        texts |= {f"{name}qwen_prompt_embeds": embeddings(images, TEXT, WIDTH, sign=sign)}
        texts |= {f"{name}{kind}_attention_mask": torch.ones(images, TEXT) for kind in ("qwen", "t5")}
        texts |= {f"{name}t5_input_ids": torch.arange(TEXT).repeat(images, 1)}
    return texts


def _with_reference(images: int) -> Call:
    return {**_plain(images), "image_cond_latents": [embeddings(1, 4, 4, 6)]}


# ---------------------------------------------------------------------------------------------- pipelines
def _usual(kind: str, model: Callable[[], Any], scheduler: Call | None = None, **parts: Callable[[], Any]) -> Any:
    """A pipeline with no other component than these."""
    pipeline = getattr(diffusers, kind)
    known = dict.fromkeys(pipeline._get_signature_keys(pipeline)[0])
    own = {"transformer": model(), "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(**scheduler or {})}
    return pipeline(**{**known, **own, **{name: part() for name, part in parts.items()}})


def _modular(blocks: str, model: Callable[[], Any], **parts: Callable[[], Any]) -> Any:
    """A modular pipeline that begins behind the text encoder and ends before the decoder."""
    module, _, name = blocks.rpartition(".")
    pipe = getattr(import_module(f"diffusers.modular_pipelines.{module}"), name)().init_pipeline()
    own = {"transformer": model(), "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)}
    pipe.update_components(**own, **{name: part() for name, part in parts.items()})
    return pipe


def flux2_vae() -> Any:
    kinds = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    return diffusers.AutoencoderKLFlux2(block_out_channels=(4,), norm_num_groups=2, latent_channels=1, **kinds).eval()


def _conditioner() -> Any:
    torch.manual_seed(0)
    sizes = {"source_dim": WIDTH, "target_dim": WIDTH, "model_dim": WIDTH, "target_vocab_size": 32}
    return diffusers.AnimaTextConditioner(num_layers=1, num_attention_heads=2, **sizes).eval()


_SHIFTING = {"use_dynamic_shifting": True}
_NO_SCALE = {"guidance_scale": 0.0}
_QWEN21 = partial(
    _modular, "qwenimage21.modular_blocks_qwenimage21.QwenImage21CoreDenoiseStep", lambda: newer.qwen_image21()
)
_FLUX3 = partial(_modular, "flux3.modular_blocks_flux3.Flux3CoreDenoiseStep", newer.flux3)
_DISTILLED = partial(
    _modular,
    "flux3.modular_blocks_flux3_distilled.Flux3DistilledImageConditionedCoreDenoiseStep",
    partial(newer.flux3, flow_map=True),
)
_ANIMA = partial(
    _modular, "anima.modular_blocks_anima.AnimaCoreDenoiseStep", newer.cosmos, text_conditioner=_conditioner
)

KINDS = {
    "z_image": Newer(
        "ZImagePipeline", partial(_usual, "ZImagePipeline", newer.z_image, _SHIFTING), _listed, unguided=_NO_SCALE
    ),
    "flux2": Newer("Flux2Pipeline", partial(_usual, "Flux2Pipeline", newer.flux2), _plain),
    "flux2_klein": Newer(
        "Flux2KleinPipeline", partial(_usual, "Flux2KleinPipeline", newer.flux2, vae=flux2_vae), _unequal,
        {"guidance_scale": 4.0}, {"guidance_scale": 1.0}, pixels=2,
    ),
    "krea2": Newer(
        "Krea2Pipeline", partial(_usual, "Krea2Pipeline", newer.krea2, _SHIFTING),
        lambda images: _masked(images, 2, WIDTH), unguided=_NO_SCALE,
    ),
    "qwen_image21": Newer("QwenImage21ModularPipeline", _QWEN21, partial(_cached, use_kv_cache=True)),
    "qwen_image21_without_cache": Newer("QwenImage21ModularPipeline", _QWEN21, partial(_cached, use_kv_cache=False)),
    "anima": Newer("AnimaModularPipeline", _ANIMA, _two_encoders),
    "flux3": Newer("Flux3ModularPipeline", _FLUX3, _unequal),
    "flux3_distilled": Newer("Flux3ModularPipeline", _DISTILLED, _with_reference, batches=False),
}  # fmt: skip
