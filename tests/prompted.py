"""Pipelines of every family that go from the text of a prompt to an image: real encoders, tokenizers and decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import PIL.Image
import torch
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModel

from tests import autoencoders, newer, texts, tiny
from tests.evaluation.networks import ClipImages
from tests.newer import TEXT, WIDTH

Call = dict[str, Any]
FLOW = diffusers.FlowMatchEulerDiscreteScheduler


@dataclass
class Prompted:
    """A pipeline, and how it is called beside its prompt.

    ``reseed`` is for those that draw numbers which no generator gives.
    """

    pipe: Any
    call: Call
    reseed: bool = False

    def generate(self, prompt: str) -> Tensor:
        """An image, or a video."""
        self.pipe.set_progress_bar_config(disable=True)
        if self.reseed:
            torch.manual_seed(0)
        seed = torch.Generator().manual_seed(0)
        result = self.pipe(**{"prompt": prompt, "num_inference_steps": 3, "generator": seed, **self.call})
        image = result[0] if isinstance(result, tuple) else result
        assert isinstance(image, Tensor)
        return image


def prompted(kind: str, call: Call, scheduler: Any = None, **parts: Any) -> Prompted:
    """A pipeline of these parts and no others."""
    pipeline = getattr(diffusers, kind)
    known = dict.fromkeys(pipeline._get_signature_keys(pipeline)[0])
    pipe = pipeline(**{**known, "scheduler": scheduler or FLOW(), **parts})
    return Prompted(pipe, {"output_type": "pt", "return_dict": False, **call})


def modular(blocks: Any, call: Call, **parts: Any) -> Prompted:
    """The same of blocks."""
    pipe = blocks.init_pipeline()
    pipe.update_components(scheduler=FLOW(shift=3.0), **parts)
    return Prompted(pipe, {"output_type": "pt", "output": "images", **call})


def size(pixels: int, frames: int = 0) -> Call:
    """8×10 tokens of so many pixels along a side, and of so many frames."""
    return {"height": 8 * pixels, "width": 10 * pixels, **({"num_frames": frames} if frames else {})}


def encoder(name: str = "T5EncoderModel") -> Call:
    """T5, or one of its kind."""
    return {"text_encoder": texts.t5(name), "tokenizer": texts.t5_tokenizer()}


# ---------------------------------------------------------------------------------------------- images
def qwen_image() -> Prompted:
    parts = {"text_encoder": texts.qwen_vl("Qwen2_5_VLForConditionalGeneration", tiny.WIDTH)}
    parts |= {"tokenizer": texts.qwen_tokenizer(), "vae": autoencoders.qwen_image()}
    call = {**size(16), "negative_prompt": "blurred", "true_cfg_scale": 4.0}
    return prompted("QwenImagePipeline", call, transformer=tiny.qwen_image()[0], **parts)


def qwen_image21() -> Prompted:
    parts = {"text_encoder": texts.qwen_vl("Qwen3VLForConditionalGeneration")}
    parts |= {"processor": texts.qwen_processor("Qwen3VLProcessor")}
    call = {**size(16), "negative_prompt": "blurred", "true_cfg_scale": 4.0}
    return prompted(
        "QwenImage21Pipeline", call, transformer=newer.qwen_image21(), vae=autoencoders.qwen_image21(), **parts
    )


def z_image() -> Prompted:
    parts = {"text_encoder": texts.language_model("Qwen3Model"), "tokenizer": texts.qwen_tokenizer()}
    scheduler = FLOW(use_dynamic_shifting=True)
    return prompted("ZImagePipeline", size(4), scheduler, transformer=newer.z_image(), vae=autoencoders.kl(), **parts)


def flux2() -> Prompted:
    parts = {"text_encoder": texts.mistral3("Mistral3ForConditionalGeneration"), "tokenizer": texts.processor()}
    call = {**size(2), "text_encoder_out_layers": (2,)}
    return prompted("Flux2Pipeline", call, transformer=newer.flux2(), vae=autoencoders.flux2(), **parts)


def flux2_klein() -> Prompted:
    parts = {"text_encoder": texts.language_model("Qwen3ForCausalLM"), "tokenizer": texts.qwen_tokenizer()}
    call = {**size(2), "text_encoder_out_layers": (2,)}
    return prompted("Flux2KleinPipeline", call, transformer=newer.flux2(), vae=autoencoders.flux2(), **parts)


def flux2_klein_kv() -> Prompted:
    """Keys and values of a reference are kept from the first step on."""
    parts = {"text_encoder": texts.language_model("Qwen3ForCausalLM"), "tokenizer": texts.qwen_tokenizer()}
    call = {**size(2), "text_encoder_out_layers": (2,), "image": PIL.Image.new("RGB", (64, 64), "orange")}
    return prompted("Flux2KleinKVPipeline", call, transformer=newer.flux2(), vae=autoencoders.flux2(), **parts)


def krea2() -> Prompted:
    parts = {"text_encoder": texts.qwen_vl("Qwen3VLModel"), "tokenizer": texts.qwen_tokenizer()}
    scheduler = FLOW(use_dynamic_shifting=True)
    taps = {"text_encoder_select_layers": (1, 2)}
    return prompted(
        "Krea2Pipeline", size(16), scheduler, transformer=newer.krea2(), vae=autoencoders.qwen_image(1), **parts, **taps
    )


def flux3() -> Prompted:
    """A model expands the prompt, by a few letters, before it is encoded."""
    from diffusers.modular_pipelines.flux3.modular_blocks_flux3 import Flux3AutoBlocks

    parts = {
        "prompt_upsampler": texts.qwen35(),
        "prompt_upsampler_processor": texts.qwen_processor("Qwen3VLProcessor", texts.LAST),
    }
    return modular(Flux3AutoBlocks(), {**FLUX3, "max_new_tokens": 4}, **flux3_parts(), **parts)


def flux3_distilled() -> Prompted:
    """The prompt is encoded as it is given, and there is a reference image."""
    from diffusers.modular_pipelines.flux3.modular_blocks_flux3_distilled import Flux3DistilledAutoBlocks

    blocks = Flux3DistilledAutoBlocks()
    blocks.sub_blocks.pop("prompt_upsampler")
    call = {**FLUX3, "image": PIL.Image.new("RGB", (64, 64), "orange")}
    return modular(blocks, call, **flux3_parts(flow_map=True))


FLUX3 = {**size(2), "text_encoder_out_layers": (2,)}


def flux3_parts(flow_map: bool = False) -> Call:
    parts = {"text_encoder": texts.qwen_vl("Qwen3VLForConditionalGeneration")}
    parts |= {"tokenizer": texts.qwen_processor("Qwen3VLProcessor")}
    return {**parts, "transformer": newer.flux3(flow_map), "vae": autoencoders.flux2()}


def anima() -> Prompted:
    from diffusers.modular_pipelines.anima.modular_blocks_anima import AnimaAutoBlocks

    parts = {"text_encoder": texts.language_model("Qwen3Model"), "tokenizer": texts.qwen_tokenizer()}
    parts |= {"t5_tokenizer": texts.t5_tokenizer(), "text_conditioner": anima_conditioner()}
    return modular(AnimaAutoBlocks(), size(16), transformer=newer.cosmos(), vae=autoencoders.qwen_image(), **parts)


def anima_conditioner() -> Any:
    torch.manual_seed(0)
    sizes = {"source_dim": WIDTH, "target_dim": WIDTH, "model_dim": WIDTH, "target_vocab_size": 128}
    return diffusers.AnimaTextConditioner(num_layers=1, num_attention_heads=2, **sizes).eval()


def cosmos2() -> Prompted:
    scheduler = FLOW(use_karras_sigmas=True)
    parts = {**encoder(), "vae": autoencoders.wan(), "safety_checker": Unchecked()}
    return prompted("Cosmos2TextToImagePipeline", size(16), scheduler, transformer=newer.cosmos(), **parts)


class Unchecked:
    """In the place of Cosmos' guardrail, a package of its own with models to download."""

    def to(self, device: Any) -> None:
        """Nothing to move."""

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, video: Any) -> Any:
        return video


def chroma() -> Prompted:
    call = {**size(4), "max_sequence_length": 32}
    return prompted("ChromaPipeline", call, transformer=newer.chroma(), vae=autoencoders.kl(1), **encoder())


def longcat_image() -> Prompted:
    parts = {"text_encoder": texts.qwen_vl("Qwen2_5_VLForConditionalGeneration"), "tokenizer": texts.qwen_tokenizer()}
    model = newer.flux_kin("LongCatImageTransformer2DModel", channels=64)
    call, scheduler = {**size(4), "enable_prompt_rewrite": False}, FLOW(use_dynamic_shifting=True)
    return prompted("LongCatImagePipeline", call, scheduler, transformer=model, vae=autoencoders.kl(16), **parts)


def ovis_image() -> Prompted:
    parts = {"text_encoder": texts.language_model("Qwen3Model"), "tokenizer": texts.qwen_tokenizer()}
    model = newer.flux_kin("OvisImageTransformer2DModel", out_channels=4)
    scheduler = FLOW(use_dynamic_shifting=True)
    return prompted("OvisImagePipeline", size(4), scheduler, transformer=model, vae=autoencoders.kl(1), **parts)


def bria() -> Prompted:
    call = {**size(4), "max_sequence_length": 32}
    model = newer.flux_kin("BriaTransformer2DModel")
    return prompted("BriaPipeline", call, transformer=model, vae=autoencoders.kl(1), **encoder())


def hunyuan_image() -> Prompted:
    """The quoted part of a prompt has an encoder of its own."""
    guider = diffusers.AdaptiveProjectedMixGuidance(guidance_scale=3.0)
    parts = {"text_encoder": texts.qwen_vl("Qwen2_5_VLForConditionalGeneration"), "tokenizer": texts.qwen_tokenizer()}
    parts |= {"text_encoder_2": texts.t5(width=8), "tokenizer_2": texts.bytes_tokenizer()}
    parts |= {"guider": guider, "ocr_guider": guider, "vae": autoencoders.hunyuan_image()}
    return prompted("HunyuanImagePipeline", size(8), transformer=newer.hunyuan_image(), **parts)


def cogview4() -> Prompted:
    scheduler = FLOW(use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, time_shift_type="linear")
    parts = {"text_encoder": texts.language_model("GlmModel"), "tokenizer": texts.glm_tokenizer()}
    parts |= {"vae": autoencoders.kl(halvings=3)}
    return prompted("CogView4Pipeline", size(16), scheduler, transformer=newer.cogview4(), **parts)


def glm_image() -> Prompted:
    """A language model writes tokens of the image first, by chance that the seed decides."""
    scheduler = FLOW(use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, time_shift_type="linear")
    writer, processor = texts.glm_image()
    parts = {"vision_language_encoder": writer, "processor": processor}
    parts |= {"vae": autoencoders.kl(halvings=3, latents_mean=[0.0] * 4, latents_std=[1.0] * 4)}
    parts |= {"text_encoder": texts.t5(), "tokenizer": texts.bytes_tokenizer()}
    return prompted("GlmImagePipeline", size(16), scheduler, transformer=newer.glm_image(), **parts)


def lumina2() -> Prompted:
    parts = {"text_encoder": texts.language_model("Gemma2Model"), "tokenizer": texts.gemma_tokenizer()}
    call = {**size(16), "system_prompt": "Draw", "max_sequence_length": 60}
    return prompted("Lumina2Pipeline", call, transformer=newer.lumina2(), vae=autoencoders.kl(), **parts)


def ernie_image() -> Prompted:
    parts = {"text_encoder": texts.mistral3("Mistral3Model"), "tokenizer": texts.qwen_tokenizer()}
    return prompted("ErnieImagePipeline", size(2), transformer=newer.ernie_image(), vae=autoencoders.flux2(), **parts)


def aura_flow() -> Prompted:
    parts = {**encoder("UMT5EncoderModel"), "vae": autoencoders.kl()}
    call = {**size(4), "max_sequence_length": 32}
    return prompted("AuraFlowPipeline", call, transformer=newer.aura_flow(), **parts)


# ---------------------------------------------------------------------------------------------- videos
WAN = {"height": 64, "width": 80, "num_frames": 5, "max_sequence_length": 32}


def wan(kind: str = "WanPipeline", model: Any = None, **call: Any) -> Prompted:
    """Text by UMT5; the smaller model of Wan 2.1 if none is given."""
    parts = {**encoder("UMT5EncoderModel"), "vae": autoencoders.wan(), "transformer": model or newer.wan()}
    return prompted(kind, {**WAN, **call}, **parts)


def wan_vace() -> Prompted:
    return wan("WanVACEPipeline", newer.wan_vace(control=72))


def skyreels() -> Prompted:
    return wan("SkyReelsV2Pipeline", newer.skyreels())


def chrono_edit() -> Prompted:
    parts = {**encoder("UMT5EncoderModel"), "vae": autoencoders.wan(), **clip_vision()}
    call = {**WAN, "image": PIL.Image.new("RGB", (80, 64), "orange")}
    return prompted("ChronoEditPipeline", call, transformer=newer.chrono_edit(12), **parts)


def wan_animate() -> Prompted:
    """Nine frames in two segments of five, each with a loop of its own."""
    frames = [PIL.Image.new("RGB", (80, 64), (25 * place, 90, 200)) for place in range(9)]
    call = {
        "image": frames[0], "pose_video": frames, "face_video": [one.resize((8, 8)) for one in frames],
        "segment_frame_length": 5, "height": 64, "width": 80, "max_sequence_length": 32,
    }  # fmt: skip
    parts = {**encoder("UMT5EncoderModel"), "vae": autoencoders.wan(), **clip_vision()}
    return prompted("WanAnimatePipeline", call, transformer=newer.wan_animate(), **parts)


def clip_vision() -> Call:
    """What makes embeddings of an image."""
    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=8
    )
    processor = ClipImages(size={"shortest_edge": 8}, crop_size=8)
    return {"image_encoder": CLIPVisionModel(config).eval(), "image_processor": processor}


def ltx(kind: str = "LTXPipeline", shifting: bool = True) -> Prompted:
    call = {**size(32, frames=9), "max_sequence_length": 32}
    return prompted(
        kind, call, FLOW(use_dynamic_shifting=shifting), transformer=newer.ltx(), vae=autoencoders.ltx(), **encoder()
    )


def ltx_condition() -> Prompted:
    """Guidance in one batch; the grid is read from coordinates."""
    return ltx("LTXConditionPipeline", shifting=False)


def ltx2() -> Prompted:
    """Guidance in one batch, then by a perturbed call; the sound is decoded too."""
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors  # only here: older versions have none
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

    sizes = {
        f"{kind}_connector_{name}": value
        for kind in ("video", "audio")
        for name, value in (("num_attention_heads", 2), ("attention_head_dim", 8), ("num_learnable_registers", None))
    }
    parts = {
        "connectors": LTX2TextConnectors(caption_channels=WIDTH, text_proj_in_factor=3, **sizes).eval(),
        "vocoder": LTX2Vocoder(hidden_channels=32).eval(),
        "text_encoder": texts.gemma3(), "tokenizer": texts.gemma_tokenizer(),
        "vae": autoencoders.ltx(audio_and_video=True), "audio_vae": autoencoders.ltx2_audio(),
    }  # fmt: skip
    call = {
        "height": 128,
        "width": 160,
        "num_frames": 9,
        "max_sequence_length": 32,
        "stg_scale": 1.0,
        "spatio_temporal_guidance_blocks": [1],
    }
    return prompted("LTX2Pipeline", call, FLOW(use_dynamic_shifting=True), transformer=newer.ltx2(audio=128), **parts)


def hunyuan_video() -> Prompted:
    parts = {"text_encoder": texts.language_model("LlamaModel"), "tokenizer": texts.llama_tokenizer()}
    parts |= {"text_encoder_2": texts.clip(), "tokenizer_2": texts.clip_tokenizer()}
    template = {"template": "Draw {}", "crop_start": 5}  # the usual one has hundreds of letters
    call = {**size(8, frames=5), "max_sequence_length": 40, "prompt_template": template}
    return prompted(
        "HunyuanVideoPipeline", call, transformer=newer.hunyuan_video(pooled=tiny.WIDTH),
        vae=autoencoders.hunyuan_video(), **parts,
    )  # fmt: skip


def hunyuan_video15() -> Prompted:
    """The quoted part of a prompt has an encoder of its own."""
    axes = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    parts = {"text_encoder": texts.language_model("Qwen2_5_VLTextModel", rope_parameters=axes)}
    parts |= {"tokenizer": texts.qwen_tokenizer(), "text_encoder_2": texts.t5(width=8)}
    parts |= {"tokenizer_2": texts.bytes_tokenizer(), "guider": diffusers.ClassifierFreeGuidance(guidance_scale=3.0)}
    parts |= {"transformer": newer.hunyuan_video15(9), "vae": autoencoders.hunyuan_video15()}
    built = prompted("HunyuanVideo15Pipeline", size(8, frames=5), **parts)
    pipe = built.pipe
    pipe.system_message, pipe.prompt_template_encode_start_idx = "Draw", 10  # the usual one has hundreds of letters
    pipe.tokenizer_max_length, pipe.vision_num_semantic_tokens = 80, 5
    return built


def cogvideox() -> Prompted:
    call = {**size(8, frames=9), "max_sequence_length": TEXT}
    scheduler = diffusers.CogVideoXDDIMScheduler()
    return prompted(
        "CogVideoXPipeline", call, scheduler, transformer=newer.cogvideox(), vae=autoencoders.cogvideox(), **encoder()
    )


BUILDERS: dict[str, Callable[[], Prompted]] = {
    "QwenImagePipeline": qwen_image,
    "QwenImage21Pipeline": qwen_image21,
    "ZImagePipeline": z_image,
    "Flux2Pipeline": flux2,
    "Flux2KleinPipeline": flux2_klein,
    "Flux2KleinKVPipeline": flux2_klein_kv,
    "Krea2Pipeline": krea2,
    "Flux3ModularPipeline": flux3,
    "Flux3DistilledModularPipeline": flux3_distilled,
    "AnimaModularPipeline": anima,
    "Cosmos2TextToImagePipeline": cosmos2,
    "ChromaPipeline": chroma,
    "LongCatImagePipeline": longcat_image,
    "OvisImagePipeline": ovis_image,
    "BriaPipeline": bria,
    "HunyuanImagePipeline": hunyuan_image,
    "CogView4Pipeline": cogview4,
    "GlmImagePipeline": glm_image,
    "Lumina2Pipeline": lumina2,
    "ErnieImagePipeline": ernie_image,
    "AuraFlowPipeline": aura_flow,
    "WanPipeline": wan,
    "WanVACEPipeline": wan_vace,
    "WanAnimatePipeline": wan_animate,
    "ChronoEditPipeline": chrono_edit,
    "SkyReelsV2Pipeline": skyreels,
    "LTXPipeline": ltx,
    "LTXConditionPipeline": ltx_condition,
    "LTX2Pipeline": ltx2,
    "HunyuanVideoPipeline": hunyuan_video,
    "HunyuanVideo15Pipeline": hunyuan_video15,
    "CogVideoXPipeline": cogvideox,
}
