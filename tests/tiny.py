"""Real diffusers pipelines, small enough for tests: random weights, nothing downloaded, fast.

``build("sdxl")`` gives a :class:`Tiny` with the pipeline and the arguments it needs; ``tiny.draw()`` runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor, nn

WIDTH = 32  # of the text encoders


@dataclass
class Tiny:
    """A small pipeline and how to call it."""

    pipe: Any
    settings: dict[str, Any]
    steps: int = 4
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        return getattr(self.pipe, self.part)

    @property
    def part(self) -> str:
        return "unet" if getattr(self.pipe, "unet", None) is not None else "transformer"

    def draw(self, seed: int = 0, **settings: Any) -> Tensor:
        """A picture (or video) as a tensor."""
        self.pipe.set_progress_bar_config(disable=True)
        call = {"prompt": "a fox", "num_inference_steps": self.steps, "output_type": "pt", **self.settings, **settings}
        result = self.pipe(generator=torch.Generator().manual_seed(seed), **call)
        drawn = result.frames if hasattr(result, "frames") else result.images
        assert isinstance(drawn, Tensor)
        return drawn


# ---------------------------------------------------------------------------------------------- text
def _clip_tokenizer() -> Any:
    """One token per byte, so that any text works."""
    letters = sorted(ByteLevel.alphabet())
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(words)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def _clip(projected: bool = False, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    config = transformers.CLIPTextConfig(
        vocab_size=2 + 2 * 256,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_attention_heads=2,
        num_hidden_layers=1,
        projection_dim=WIDTH,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return kind(config).eval()


def _t5_tokenizer() -> Any:
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -1.0),
        *((chr(code), -2.0) for code in range(33, 127)),
    ]
    return transformers.T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=64)


def _t5() -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=128, d_model=WIDTH, d_kv=8, d_ff=WIDTH, num_layers=1, num_heads=2)
    return transformers.T5EncoderModel(config).eval()


# ---------------------------------------------------------------------------------------------- pictures
def _vae(shifted: bool = False) -> Any:
    """Halves the picture once: 64 pixels are 32 latents."""
    torch.manual_seed(0)
    flux_like = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.1, "scaling_factor": 1.5}
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        sample_size=64,
        **(flux_like if shifted else {}),
    ).eval()


def _unet(**config: Any) -> Any:
    torch.manual_seed(0)
    common = {"layers_per_block": 1, "sample_size": 32, "norm_num_groups": 2, "in_channels": 4, "out_channels": 4}
    return diffusers.UNet2DConditionModel(**common, **config).eval()


def sd15_unet() -> Any:
    """Attention at both levels."""
    return _unet(
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=2,
        cross_attention_dim=WIDTH,
    )


def sd15() -> Tiny:
    pipe = diffusers.StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=_clip(),
        tokenizer=_clip_tokenizer(),
        unet=sd15_unet(),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return Tiny(pipe, {"height": 64, "width": 64})


def sdxl_unet() -> Any:
    """Like the real one: no attention at the top, stacks of different depth at the two levels below."""
    return _unet(
        block_out_channels=(8, 16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1, 2),
        attention_head_dim=(1, 2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
        cross_attention_dim=2 * WIDTH,
    )


def sdxl() -> Tiny:
    pipe = diffusers.StableDiffusionXLPipeline(
        vae=_vae(),
        text_encoder=_clip(),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_clip(projected=True, seed=1),
        tokenizer_2=_clip_tokenizer(),
        unet=sdxl_unet(),
        scheduler=diffusers.EulerDiscreteScheduler(steps_offset=1, timestep_spacing="leading"),
        add_watermarker=False,
    )
    return Tiny(pipe, {"height": 64, "width": 64})


def flux_transformer(double: int = 2, single: int = 3) -> Any:
    """Joint and single blocks, guidance distilled."""
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=double,
        num_single_layers=single,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 6, 6),
        guidance_embeds=True,
    ).eval()


def flux(double: int = 2, single: int = 3) -> Tiny:
    pipe = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(shifted=True),
        text_encoder=_clip(),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_t5(),
        tokenizer_2=_t5_tokenizer(),
        transformer=flux_transformer(double, single),
    )
    return Tiny(pipe, {"height": 64, "width": 64, "max_sequence_length": 12})


def sd3_transformer() -> Any:
    """Three blocks: one with dual attention, an ordinary one, and the last, which leaves the text alone."""
    torch.manual_seed(0)
    return diffusers.SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=WIDTH,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=32,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    ).eval()


def sd3() -> Tiny:
    pipe = diffusers.StableDiffusion3Pipeline(
        transformer=sd3_transformer(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(shifted=True),
        text_encoder=_clip(projected=True),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_clip(projected=True, seed=1),
        tokenizer_2=_clip_tokenizer(),
        text_encoder_3=_t5(),
        tokenizer_3=_t5_tokenizer(),
    )
    return Tiny(pipe, {"height": 64, "width": 64, "max_sequence_length": 12})


def pixart_transformer() -> Any:
    """Two blocks."""
    torch.manual_seed(0)
    return diffusers.PixArtTransformer2DModel(
        sample_size=16,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        cross_attention_dim=24,
        caption_channels=WIDTH,
        in_channels=4,
        out_channels=8,
    ).eval()


def pixart() -> Tiny:
    pipe = diffusers.PixArtSigmaPipeline(
        tokenizer=_t5_tokenizer(),
        text_encoder=_t5(),
        vae=_vae(),
        transformer=pixart_transformer(),
        scheduler=diffusers.DDIMScheduler(),
    )
    plain = {"use_resolution_binning": False, "clean_caption": False, "max_sequence_length": 12}
    return Tiny(pipe, {"height": 64, "width": 64, **plain})


def wan_transformer() -> Any:
    """Two blocks on video."""
    torch.manual_seed(0)
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=WIDTH,
        freq_dim=64,
        ffn_dim=WIDTH,
        num_layers=2,
        cross_attn_norm=True,
        rope_max_seq_len=32,
    ).eval()


def wan() -> Tiny:
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()
    pipe = diffusers.WanPipeline(
        tokenizer=_t5_tokenizer(),
        text_encoder=_t5(),
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        transformer=wan_transformer(),
    )
    return Tiny(pipe, {"height": 64, "width": 64, "num_frames": 5, "max_sequence_length": 12})


FAMILIES: dict[str, Callable[[], Tiny]] = {
    "sd15": sd15,
    "sdxl": sdxl,
    "flux": flux,
    "sd3": sd3,
    "pixart": pixart,
    "wan": wan,
}


MODELS: dict[str, Callable[[], Any]] = {
    "sd15": sd15_unet,
    "sdxl": sdxl_unet,
    "flux": flux_transformer,
    "sd3": sd3_transformer,
    "pixart": pixart_transformer,
    "wan": wan_transformer,
}


def model(name: str) -> Any:
    """The denoiser of a family alone: no tokenizer, no text encoder, so older versions of both do as well."""
    return MODELS[name]()


def build(name: str) -> Tiny:
    """A fresh pipeline of a family."""
    return FAMILIES[name]()


# ---------------------------------------------------------------------------------------------- bare models
def text_lengths(text: int, batch: int) -> dict[str, Any]:
    """What older versions of Qwen-Image want to be told about the text."""
    known = inspect.signature(diffusers.QwenImageTransformer2DModel.forward).parameters
    return {"txt_seq_lens": [text] * batch} if "txt_seq_lens" in known else {}


def qwen_image() -> tuple[nn.Module, Callable[..., dict[str, Any]]]:
    """A Qwen-Image transformer and its inputs (its pipeline needs a vision-language model as text encoder)."""
    torch.manual_seed(0)
    model = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 6, 6),
    ).eval()

    def inputs(height: int = 8, width: int = 8, batch: int = 1, text: int = 6, references: int = 0) -> dict[str, Any]:
        shapes = [(1, height, width)] * (1 + references)
        torch.manual_seed(1)
        return {
            **text_lengths(text, batch),
            "hidden_states": torch.randn(batch, height * width * (1 + references), 16),
            "encoder_hidden_states": torch.randn(batch, text, WIDTH),
            "encoder_hidden_states_mask": torch.ones(batch, text, dtype=torch.long),
            "timestep": torch.full((batch,), 0.7),
            "img_shapes": [shapes] * batch,
            "return_dict": False,
        }

    return model, inputs
