"""The families of ``test_further.py`` through their pipelines; those of ``test_newer_pipelines.py`` through others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import PIL.Image
import pytest
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModel

from tests import denoisers, newer, newer_pipelines, tiny
from tests.evaluation.networks import ClipImages
from tests.families.test_newer_pipelines import check_merges_and_is_restored
from tests.newer import TEXT, WIDTH
from tests.newer_pipelines import embeddings

STEPS = 3
Drawn = tuple[Any, Callable[[], Tensor]]
SQUARE = {"height": 128, "width": 160}


def usual(kind: str, model: Any, call: dict[str, Any], scheduler: Any = None, **parts: Any) -> Drawn:
    """A pipeline with no other component than these, and what generates an image with it."""
    pipeline = getattr(diffusers, kind)
    known = dict.fromkeys(pipeline._get_signature_keys(pipeline)[0])
    scheduler = scheduler or diffusers.FlowMatchEulerDiscreteScheduler()
    pipe = pipeline(**{**known, "transformer": model, "scheduler": scheduler, **parts})
    pipe.set_progress_bar_config(disable=True)
    settings = {"output_type": "latent", "num_inference_steps": STEPS, "return_dict": False, **call}

    def generate() -> Tensor:
        result: Tensor = pipe(generator=torch.Generator().manual_seed(0), **settings)[0]
        return result

    return pipe, generate


def words(mask: str = "", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Embeddings of a text and of a negative one, which is padded; ``mask`` names their masks."""
    texts = {"prompt_embeds": embeddings(1, TEXT, WIDTH), "negative_prompt_embeds": embeddings(1, TEXT, WIDTH, sign=-1)}
    if mask:
        lengths = zip(texts, (TEXT, TEXT - 1), strict=True)
        texts |= {mask.format(name): (torch.arange(TEXT)[None] < length).to(dtype) for name, length in lengths}
    return texts


def wan_vae() -> Any:
    return diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    ).eval()  # fmt: skip


def clip() -> dict[str, Any]:
    """What makes embeddings of an image."""
    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=8
    )
    processor = ClipImages(size={"shortest_edge": 8}, crop_size=8)
    return {"image_encoder": CLIPVisionModel(config).eval(), "image_processor": processor}


def wan_vace() -> Drawn:
    """Guidance in two passes, as most below."""
    call = {**words(), "height": 64, "width": 80, "num_frames": 5}
    return usual("WanVACEPipeline", newer.wan_vace(control=72), call, vae=wan_vae())


def chrono_edit() -> Drawn:
    image = PIL.Image.new("RGB", (80, 64), "orange")
    call = {**words(), "image": image, "height": 64, "width": 80}
    return usual("ChronoEditPipeline", newer.chrono_edit(12), call, vae=wan_vae(), **clip())


def wan_animate() -> Drawn:
    """Nine frames in two segments of five, each with a loop of its own."""
    frames = [PIL.Image.new("RGB", (80, 64), (25 * place, 90, 200)) for place in range(9)]
    call = {
        **words(), "image": frames[0], "pose_video": frames, "face_video": [one.resize((8, 8)) for one in frames],
        "segment_frame_length": 5, "height": 64, "width": 80,
    }  # fmt: skip
    return usual("WanAnimatePipeline", newer.wan_animate(), call, vae=wan_vae(), **clip())


def skyreels() -> Drawn:
    call = {**words(), "height": 64, "width": 80, "num_frames": 5}
    return usual("SkyReelsV2Pipeline", newer.skyreels(), call)


def ltx_condition() -> Drawn:
    """Guidance in one batch; the grid is read from coordinates."""
    call = {**words("{}_mask"), "height": 128, "width": 160, "num_frames": 9}
    call = {name.replace("embeds_mask", "attention_mask"): value for name, value in call.items()}
    return usual("LTXConditionPipeline", newer.ltx(), call, vae=ltx_vae())


def ltx_vae() -> Any:
    sizes = {
        f"{place}{name}": value
        for place in ("", "decoder_")
        for name, value in (("block_out_channels", (8,) * 4), ("layers_per_block", (1,) * 5))
    }
    return diffusers.AutoencoderKLLTXVideo(latent_channels=4, **sizes).eval()


def ltx2() -> Drawn:
    """Guidance in one batch, then by a perturbed call."""
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors  # only here: older versions have none

    call = {**words("{}_mask"), "height": 128, "width": 160, "num_frames": 9, "stg_scale": 1.0}
    call = {name.replace("embeds_mask", "attention_mask"): value for name, value in call.items()}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    call["spatio_temporal_guidance_blocks"] = [1]
    sizes = {
        f"{kind}_connector_{name}": value
        for kind in ("video", "audio")
        for name, value in (("num_attention_heads", 2), ("attention_head_dim", 8), ("num_learnable_registers", None))
    }
    connectors = LTX2TextConnectors(caption_channels=WIDTH, text_proj_in_factor=1, **sizes).eval()
    audio_vae = diffusers.AutoencoderKLLTX2Audio(ch_mult=(1,), num_res_blocks=1).eval()
    parts = {"connectors": connectors, "vae": ltx_vae(), "audio_vae": audio_vae}
    return usual("LTX2Pipeline", newer.ltx2(audio=128), call, scheduler, **parts)


def longcat_image() -> Drawn:
    """It takes no embeddings of a prompt, so its encoder gives them."""
    call = {"prompt": "a fox", **SQUARE, "enable_prompt_rewrite": False}
    model = newer.flux_kin("LongCatImageTransformer2DModel", channels=64)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipe, generate = usual("LongCatImagePipeline", model, call, scheduler)
    pipe._encode_prompt = lambda prompt: embeddings(1, TEXT + len(prompt[0]), WIDTH)
    return pipe, generate


def ovis_image() -> Drawn:
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    call = {**words(), **SQUARE, "negative_prompt": None}
    return usual("OvisImagePipeline", newer.flux_kin("OvisImageTransformer2DModel", out_channels=4), call, scheduler)


def bria() -> Drawn:
    """Guidance in one batch."""
    call = {**words(), "height": 64, "width": 80}
    return usual("BriaPipeline", newer.flux_kin("BriaTransformer2DModel"), call, vae=tiny._vae(shifted=True))


def hunyuan_image() -> Drawn:
    texts = words("{}_mask", torch.long) | {
        f"{name}prompt_embeds{kind}": value
        for name in ("", "negative_")
        for kind, value in (("_2", torch.zeros(1, 3, 8)), ("_mask_2", torch.zeros(1, 3, dtype=torch.long)))
    }
    call = {**texts, "height": 256, "width": 320}
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=3.0)
    return usual("HunyuanImagePipeline", newer.hunyuan_image(), call, guider=guider)


def hunyuan_video15() -> Drawn:
    texts = words("{}_mask") | {
        f"{name}prompt_embeds{kind}": value
        for name in ("", "negative_")
        for kind, value in (("_2", embeddings(1, 3, 8)), ("_mask_2", torch.ones(1, 3)))
    }
    vae = diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(8, 8, 8, 8, 8), layers_per_block=1, spatial_compression_ratio=16,
        temporal_compression_ratio=4,
    ).eval()  # fmt: skip
    call = {**texts, "height": 128, "width": 160, "num_frames": 5}
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=3.0)
    return usual("HunyuanVideo15Pipeline", newer.hunyuan_video15(9), call, vae=vae, guider=guider)


def glm_image() -> Drawn:
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, time_shift_type="linear"
    )
    call = {**words(), **SQUARE, "prior_token_ids": torch.arange(80)[None] % 32}
    return usual("GlmImagePipeline", newer.glm_image(), call, scheduler)


def ernie_image() -> Drawn:
    """Guidance in one batch, texts of unequal lengths."""
    texts = {
        "prompt_embeds": [embeddings(1, TEXT, WIDTH)[0]],
        "negative_prompt_embeds": [embeddings(1, TEXT + 2, WIDTH)[0]],
    }
    return usual("ErnieImagePipeline", newer.ernie_image(), {**texts, **SQUARE})


def qwen_image21() -> Drawn:
    """Its encoder is not asked, but its processor is, how long the system's prompt is."""
    letters = [*sorted(ByteLevel.alphabet()), "<|image_pad|>"]
    tokenizer = transformers.Qwen2Tokenizer(vocab={one: place for place, one in enumerate(letters)}, merges=[])
    processor = transformers.LlavaProcessor(ClipImages(), tokenizer, chat_template="{{ messages[0]['role'] }}")
    call = {**words("{}_mask", torch.bool), **SQUARE, "true_cfg_scale": 4.0}
    vae = diffusers.AutoencoderKLQwenImage21(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
    )
    return usual("QwenImage21Pipeline", newer.qwen_image21(), call, vae=vae, processor=processor)


def flux2_klein_kv() -> Drawn:
    """Keys and values of a reference are kept from the first step on."""
    image = PIL.Image.new("RGB", (64, 64), "orange")
    call = {"prompt_embeds": embeddings(1, TEXT, WIDTH), "image": image, "height": 16, "width": 20}
    return usual("Flux2KleinKVPipeline", newer.flux2(), call, vae=newer_pipelines.flux2_vae())


def cosmos2() -> Drawn:
    call = {**words(), "height": 128, "width": 160}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True)
    parts = {"vae": wan_vae(), "safety_checker": Unchecked()}
    return usual("Cosmos2TextToImagePipeline", newer.cosmos(), call, scheduler, **parts)


class Unchecked:
    """In the place of Cosmos' guardrail, a package of its own; of embeddings and latents it checks nothing."""

    def to(self, device: Any) -> None:
        """Nothing to move."""


def other(name: str) -> Callable[[], Drawn]:
    """A pipeline that forecasts are tested on."""

    def build() -> Drawn:
        pipe, call = denoisers.BUILDERS[name]()
        return pipe, lambda: denoisers.generate(pipe, call, STEPS)

    build.__name__ = name
    return build


BUILDERS: dict[str, Callable[[], Drawn]] = {
    "WanVACEPipeline": wan_vace,
    "ChronoEditPipeline": chrono_edit,
    "WanAnimatePipeline": wan_animate,
    "SkyReelsV2Pipeline": skyreels,
    "LTXPipeline": other("ltx"),
    "LTXConditionPipeline": ltx_condition,
    "LTX2Pipeline": ltx2,
    "ChromaPipeline": other("chroma"),
    "LongCatImagePipeline": longcat_image,
    "OvisImagePipeline": ovis_image,
    "BriaPipeline": bria,
    "HunyuanVideoPipeline": other("hunyuan_video"),
    "HunyuanVideo15Pipeline": hunyuan_video15,
    "HunyuanImagePipeline": hunyuan_image,
    "CogView4Pipeline": other("cogview4"),
    "GlmImagePipeline": glm_image,
    "Lumina2Pipeline": other("lumina2"),
    "ErnieImagePipeline": ernie_image,
    "CogVideoXPipeline": other("cogvideox"),
    "AuraFlowPipeline": other("aura_flow"),
    "QwenImage21Pipeline": qwen_image21,
    "Flux2KleinKVPipeline": flux2_klein_kv,
    "Cosmos2TextToImagePipeline": cosmos2,
}


LONG = ("WanVACEPipeline", "ChronoEditPipeline", "LTXConditionPipeline", "LTX2Pipeline", "HunyuanVideo15Pipeline")
CASES = [
    pytest.param(build, id=name, marks=[newer.needs(name), *[pytest.mark.slow] * (name in LONG)])
    for name, build in BUILDERS.items()
]


@pytest.mark.parametrize("build", CASES)
def test_pipeline_merges_and_is_restored(build: Callable[[], Drawn]) -> None:
    check_merges_and_is_restored(*build())
