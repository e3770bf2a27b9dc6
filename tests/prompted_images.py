"""The other pipelines that families list: those of ``prompted.py``, given an image or a video beside the prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import diffusers
import transformers

from tests import autoencoders, newer, prompted, texts, tiny
from tests.evaluation.networks import ClipImages, image
from tests.prompted import Call, Prompted, size

Make = Callable[[], Prompted]
SMALL, LARGE, MIDDLE = (40, 32), (160, 128), (80, 64)  # 8×10 tokens of 4 and 16 pixels, 4×5 of 16


def given(kind: str, built: Prompted, parts: Call | None = None, **call: Any) -> Prompted:
    """Another pipeline of the parts of one, and these; what it is called with is added to, or left out if None."""
    pipeline = getattr(diffusers, kind)
    known = pipeline._get_signature_keys(pipeline)[0]
    own = {name: part for name, part in {**built.pipe.components, **(parts or {})}.items() if name in known}
    own = {**dict.fromkeys(known), **own}
    told = {name: value for name, value in {**built.call, **call}.items() if value is not None}
    return Prompted(pipeline(**own), told)


def frames(number: int, width: int, height: int) -> list[Any]:
    return [image(seed, (width, height)) for seed in range(number)]


def tiny_one(name: str) -> Prompted:
    """A family whose tiny pipeline has encoders anyway."""
    built = tiny.build(name)
    return Prompted(built.pipe, {"output_type": "pt", "return_dict": False, **built.settings})


def masked(width: int, height: int) -> Call:
    """An image, and where to paint over it."""
    return {"image": image(0, (width, height)), "mask_image": image(1, (width, height)).convert("L")}


# ---------------------------------------------------------------------------------------------- images
def qwen_image_edit() -> Prompted:
    parts = {"processor": texts.qwen_processor("Qwen2VLProcessor")}
    return given("QwenImageEditPipeline", prompted.qwen_image(), parts, image=image(0, LARGE))


def qwen_image21_edit() -> Prompted:
    return given("QwenImage21Pipeline", prompted.qwen_image21(), image=image(0, LARGE), output_resolution=64)


def longcat_edit() -> Prompted:
    parts = {"text_processor": texts.qwen_processor("Qwen2VLProcessor")}
    call = {"image": image(0, SMALL), "enable_prompt_rewrite": None, "height": None, "width": None}
    return given("LongCatImageEditPipeline", prompted.longcat_image(), parts, **call)


def chroma_inpaint() -> Prompted:
    """It asks the model's configuration for an entry that a saved one has, and one made of a class has not."""
    one = prompted.chroma()
    one.pipe.transformer.register_to_config(guidance_embeds=False)
    return given("ChromaInpaintPipeline", one, **masked(*SMALL), **CHANGED)


def cogview4_control() -> Prompted:
    parts = {"transformer": newer.cogview4(channels=8)}
    built = given("CogView4ControlPipeline", prompted.cogview4(), parts, control_image=image(0, LARGE))
    built.reseed = True  # it encodes the image by chance
    return built


def hunyuan_image_refiner() -> Prompted:
    parts = {"vae": autoencoders.hunyuan_image_refiner(), "transformer": newer.hunyuan_image(refiner=True, out=2)}
    built = given("HunyuanImageRefinerPipeline", prompted.hunyuan_image(), parts, image=image(0, SMALL), **size(4))
    built.pipe.prompt_template_encode, built.pipe.prompt_template_encode_start_idx = "Draw {}", 4
    return built


def sd3_controlnet() -> Prompted:
    one = tiny_one("sd3")
    net = diffusers.SD3ControlNetModel.from_transformer(
        one.pipe.transformer, 1, num_extra_conditioning_channels=0
    ).eval()
    return given("StableDiffusion3ControlNetPipeline", one, {"controlnet": net}, control_image=image(0, (64, 64)))


def z_image_controlnet() -> Prompted:
    net = diffusers.ZImageControlNetModel(
        control_layers_places=[0], control_refiner_layers_places=[0], control_in_dim=4, add_control_noise_refiner=None,
        dim=32, n_refiner_layers=1, n_heads=2, n_kv_heads=2,
    )  # fmt: skip
    one = prompted.z_image()
    net = diffusers.ZImageControlNetModel.from_transformer(net, one.pipe.transformer).eval()
    return given("ZImageControlNetPipeline", one, {"controlnet": net}, control_image=image(0, SMALL))


def pixart_alpha() -> Prompted:
    return given("PixArtAlphaPipeline", tiny_one("pixart"))


# ---------------------------------------------------------------------------------------------- videos
def cosmos2_video() -> Prompted:
    parts = {"transformer": newer.cosmos(channels=5)}
    call = {"image": image(0, MIDDLE), "height": 64, "width": 80, "num_frames": 5}
    return given("Cosmos2VideoToWorldPipeline", prompted.cosmos2(), parts, **call)


def cogvideox_image() -> Prompted:
    parts = {"transformer": newer.cogvideox(channels=8)}
    return given("CogVideoXImageToVideoPipeline", prompted.cogvideox(), parts, image=image(0, MIDDLE))


def hunyuan_video_image() -> Prompted:
    """Llava reads the prompt, with the image in it."""
    parts = {"text_encoder": texts.llava(), "tokenizer": texts.header_tokenizer()}
    parts |= {"transformer": newer.hunyuan_video("latent_concat", tiny.WIDTH, channels=9)}
    parts |= {"image_processor": ClipImages(size={"shortest_edge": 32}, crop_size=32)}
    template = {
        "template": "<|end_header_id|><image><|end_header_id|>{}<|end_header_id|>", "crop_start": 3, "image_emb_len": 4,
        "image_emb_start": 1, "image_emb_end": 5, "double_return_token_id": 0,
    }  # fmt: skip
    call = {"image": image(0, MIDDLE), "prompt_template": template}
    return given("HunyuanVideoImageToVideoPipeline", prompted.hunyuan_video(), parts, **call)


def hunyuan_video15_image() -> Prompted:
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.SiglipVisionConfig(**vision, image_size=32, patch_size=16)
    parts = {"image_encoder": transformers.SiglipVisionModel(config).eval()}
    parts |= {"feature_extractor": SiglipImages(size={"height": 32, "width": 32})}
    call = {"image": image(0, (64, 64)), "height": None, "width": None}
    parts |= {"transformer": newer.hunyuan_video15(9, target=64)}
    first = prompted.hunyuan_video15()
    built = given("HunyuanVideo15ImageToVideoPipeline", first, parts, **call)
    for name in ("system_message", "prompt_template_encode_start_idx", "tokenizer_max_length"):
        setattr(built.pipe, name, getattr(first.pipe, name))
    return built


def ltx2_condition(kind: str = "LTX2ConditionPipeline") -> Prompted:
    from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition

    condition = LTX2VideoCondition(frames=image(0, LARGE), index=0, crf=0)
    return given(kind, prompted.ltx2(), conditions=[condition])


def ltx2_in_context() -> Prompted:
    from diffusers.pipelines.ltx2.pipeline_ltx2_ic_lora import LTX2ReferenceCondition

    reference = LTX2ReferenceCondition(frames=frames(9, *LARGE))
    return given("LTX2InContextPipeline", prompted.ltx2(), reference_conditions=[reference])


def skyreels_image() -> Prompted:
    parts = {"transformer": newer.skyreels(channels=12, image=8), **prompted.clip_vision()}
    return given("SkyReelsV2ImageToVideoPipeline", prompted.skyreels(), parts, image=image(0, MIDDLE))


def skyreels_forcing() -> Prompted:
    """Every frame has a scheduler of its own."""
    scheduler = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    return given("SkyReelsV2DiffusionForcingPipeline", prompted.skyreels(), {"scheduler": scheduler}, base_num_frames=5)


def wan_image() -> Prompted:
    parts = {"transformer": newer.wan(channels=12), **prompted.clip_vision()}
    return given("WanImageToVideoPipeline", prompted.wan(), parts, image=image(0, MIDDLE))


def _short(kind: str, make: Make, **call: Any) -> Make:
    return lambda: given(kind, make(), **call)


SiglipImages = getattr(transformers, "SiglipImageProcessorPil", transformers.SiglipImageProcessor)
CHANGED = {"strength": 0.7, "num_inference_steps": 5}
_SHORT: dict[str, tuple[Make, Call]] = {
    "ChromaImg2ImgPipeline": (prompted.chroma, {"image": image(0, SMALL), **CHANGED}),
    "FluxImg2ImgPipeline": (partial(tiny_one, "flux"), {"image": image(0, (64, 64)), **CHANGED}),
    "FluxInpaintPipeline": (partial(tiny_one, "flux"), {**masked(64, 64), **CHANGED}),
    "FluxKontextPipeline": (
        partial(tiny_one, "flux"), {"image": image(0, (64, 64)), "_auto_resize": False, "max_area": 64 * 64}
    ),
    "Flux2KleinInpaintPipeline": (prompted.flux2_klein, {**masked(20, 16), **CHANGED}),
    "StableDiffusion3Img2ImgPipeline": (partial(tiny_one, "sd3"), {"image": image(0, (64, 64)), **CHANGED}),
    "ZImageImg2ImgPipeline": (prompted.z_image, {"image": image(0, SMALL), **CHANGED}),
    "ZImageInpaintPipeline": (prompted.z_image, {**masked(*SMALL), **CHANGED}),
    "CogVideoXVideoToVideoPipeline": (
        prompted.cogvideox, {"video": frames(9, *MIDDLE), "num_frames": None, **CHANGED}
    ),
    "LTXImageToVideoPipeline": (prompted.ltx, {"image": image(0, (320, 256))}),
    "LTX2ImageToVideoPipeline": (prompted.ltx2, {"image": image(0, LARGE), "image_crf": 0}),
    "WanVideoToVideoPipeline": (prompted.wan, {"video": frames(5, *MIDDLE), "num_frames": None, **CHANGED}),
}  # fmt: skip

BUILDERS: dict[str, Make] = {
    "QwenImageEditPipeline": qwen_image_edit,
    "QwenImage21Pipeline": qwen_image21_edit,
    "LongCatImageEditPipeline": longcat_edit,
    "ChromaInpaintPipeline": chroma_inpaint,
    "CogView4ControlPipeline": cogview4_control,
    "HunyuanImageRefinerPipeline": hunyuan_image_refiner,
    "StableDiffusion3ControlNetPipeline": sd3_controlnet,
    "ZImageControlNetPipeline": z_image_controlnet,
    "PixArtAlphaPipeline": pixart_alpha,
    "Cosmos2VideoToWorldPipeline": cosmos2_video,
    "CogVideoXImageToVideoPipeline": cogvideox_image,
    "HunyuanVideoImageToVideoPipeline": hunyuan_video_image,
    "HunyuanVideo15ImageToVideoPipeline": hunyuan_video15_image,
    "LTX2ConditionPipeline": ltx2_condition,
    "LTX2InContextPipeline": ltx2_in_context,
    "SkyReelsV2ImageToVideoPipeline": skyreels_image,
    "SkyReelsV2DiffusionForcingPipeline": skyreels_forcing,
    "WanImageToVideoPipeline": wan_image,
    **{kind: _short(kind, make, **call) for kind, (make, call) in _SHORT.items()},
}
