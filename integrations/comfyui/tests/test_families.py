"""Tokens merge in every family of ComfyUI's models, at every site, whatever lies around the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tomadiff.engine.hosted import HostedModel, HostedRun
from tomadiff.methods import ToMA

from . import host as host
from .tiny import filled

import comfy.ldm.chroma.model  # isort: skip
import comfy.ldm.cosmos.predict2
import comfy.ldm.flux.model
import comfy.ldm.hidream.model
import comfy.ldm.hunyuan_video.model
import comfy.ldm.lightricks.model
import comfy.ldm.lumina.model
import comfy.ldm.modules.diffusionmodules.mmdit
import comfy.ldm.qwen_image.model
import comfy.ldm.wan.model
import comfy.ops

from integrations.comfyui.families import FAMILIES, family_of

_COMMON: dict[str, Any] = {"dtype": torch.float32, "operations": comfy.ops.disable_weight_init}
_TIME, _TEXT = torch.tensor([0.5]), 7
_FLUX = {"mlp_ratio": 2.0, "num_heads": 2, "theta": 10000, "qkv_bias": True, "axes_dim": [4, 6, 6], "hidden_size": 32}


def text(width: int) -> torch.Tensor:
    return torch.randn(1, _TEXT, width)


def chroma() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    approximator = {"in_dim": 64, "out_dim": 32, "hidden_dim": 16, "n_layers": 1}
    model = comfy.ldm.chroma.model.Chroma(
        in_channels=16, out_channels=16, context_in_dim=8, depth=2, depth_single_blocks=2, patch_size=2,
        **_FLUX, **approximator, **_COMMON,
    )  # fmt: skip
    return model, (torch.randn(1, 4, 16, 24), _TIME, text(8), torch.zeros(1)), {}, 96


def flux2() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    settings = {**_FLUX, "axes_dim": [4, 4, 4, 4]}
    model = comfy.ldm.flux.model.Flux(
        in_channels=8, out_channels=8, vec_in_dim=None, context_in_dim=8, depth=2, depth_single_blocks=2, patch_size=1,
        guidance_embed=True, global_modulation=True, mlp_silu_act=True, ops_bias=False, **settings, **_COMMON,
    )  # fmt: skip
    references = [torch.randn(1, 8, 4, 6)]
    call = {"guidance": torch.ones(1), "ref_latents": references}
    return model, (torch.randn(1, 8, 8, 12), _TIME, text(8)), call, 96


def hunyuan_video() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.hunyuan_video.model.HunyuanVideo(
        in_channels=4, out_channels=4, vec_in_dim=8, context_in_dim=8, depth=2, depth_single_blocks=2,
        patch_size=[1, 2, 2], guidance_embed=False, byt5=False, meanflow=False, use_cond_type_embedding=False,
        vision_in_dim=None, **_FLUX, **_COMMON,
    )  # fmt: skip
    mask = torch.tensor([[1] * 5 + [0] * 2])
    call = {"y": torch.randn(1, 8), "attention_mask": mask, "ref_latent": torch.randn(1, 4, 1, 16, 16)}
    return model, (torch.randn(1, 4, 2, 16, 16), _TIME, text(8)), call, 128


def sd3() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper(
        depth=1, num_blocks=3, mlp_ratio=2.0, adm_in_channels=8, num_patches=256, pos_embed_max_size=16, qk_norm="rms",
        x_block_self_attn_layers=[0], **_COMMON,
        context_embedder_config={"target": "torch.nn.Linear", "params": {"in_features": 8, "out_features": 64}},
    )  # fmt: skip
    torch.nn.init.normal_(model.pos_embed)
    return model, (torch.randn(1, 4, 16, 24), _TIME, text(8)), {"y": torch.randn(1, 8)}, 96


def qwen_image() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.qwen_image.model.QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=8, axes_dims_rope=(4, 6, 6), **_COMMON,
    )  # fmt: skip
    references = [torch.randn(1, 4, 1, 8, 8)]
    return model, (torch.randn(1, 4, 1, 16, 24), _TIME, text(8)), {"ref_latents": references}, 96


def z_image() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.lumina.model.NextDiT(
        in_channels=4, dim=256, n_layers=2, n_refiner_layers=1, n_heads=2, multiple_of=8, ffn_dim_multiplier=1.0,
        qk_norm=True, cap_feat_dim=8, axes_dims=[32, 48, 48], axes_lens=[64, 64, 64], z_image_modulation=True,
        pad_tokens_multiple=32, **_COMMON,
    )  # fmt: skip
    return model, (torch.randn(1, 4, 8, 24), _TIME, text(8), _TEXT), {}, 48


def lumina2() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.lumina.model.NextDiT(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, multiple_of=8, ffn_dim_multiplier=1.0,
        qk_norm=True, cap_feat_dim=8, axes_dims=[4, 6, 6], axes_lens=[64, 64, 64], **_COMMON,
    )  # fmt: skip
    return model, (torch.randn(1, 4, 16, 16), _TIME, text(8), _TEXT), {}, 64


def wan() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.wan.model.WanModel(
        in_dim=4, dim=48, ffn_dim=64, freq_dim=16, text_dim=8, out_dim=4, num_heads=2, num_layers=2, **_COMMON
    )
    return model, (torch.randn(1, 4, 2, 16, 16), _TIME, text(8)), {}, 128


def ltx() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.lightricks.model.LTXVModel(
        in_channels=8, cross_attention_dim=48, attention_head_dim=24, num_attention_heads=2, caption_channels=8,
        num_layers=2, **_COMMON,
    )  # fmt: skip
    return model, (torch.randn(1, 8, 2, 8, 8), _TIME, text(8), None), {}, 128


def cosmos() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.cosmos.predict2.MiniTrainDIT(
        max_img_h=32, max_img_w=32, max_frames=8, in_channels=4, out_channels=4, patch_spatial=2, patch_temporal=1,
        model_channels=48, num_blocks=2, num_heads=2, crossattn_emb_channels=8, pos_emb_cls="rope3d", **_COMMON,
    )  # fmt: skip
    return model, (torch.randn(1, 4, 2, 16, 16), _TIME, text(8)), {}, 128


def hidream() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    model = comfy.ldm.hidream.model.HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, caption_channels=[8, 8], text_emb_dim=8, num_routed_experts=2, axes_dims_rope=(4, 6, 6),
        llama_layers=[0, 1, 0, 1], **_COMMON,
    )  # fmt: skip
    call = {"y": torch.randn(1, 8), "context": text(8), "encoder_hidden_states_llama3": torch.randn(1, 2, 5, 8)}
    return model, (torch.randn(1, 4, 16, 16), _TIME), call, 64


CASES: list[Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]]] = [
    chroma, flux2, hunyuan_video, sd3, qwen_image, z_image, lumina2, wan, ltx, cosmos, hidream,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_family_merges_at_every_site(case: Any) -> None:
    torch.manual_seed(0)
    model, args, call, tokens = case()
    filled(model.eval())
    call = {**call, "transformer_options": {}}
    method = ToMA(0.5, skip=0)
    run = HostedRun([1.0])
    with torch.inference_mode():
        plain = model(*args, **call)
        before = {name: set(module.__dict__) for name, module in model.named_modules()}
        run.merge(HostedModel(model, family_of(model), method, method.schedule, backend="attention_pytorch"))
        with run.merging(model, args, call):
            merged = model(*args, **call)
        assert torch.equal(model(*args, **call), plain), "calls that nobody announces run as they are"
    report = str(run.report())
    run.end()
    assert merged.isfinite().all()
    assert not torch.allclose(merged, plain, rtol=1e-3, atol=1e-4)
    assert f"{tokens} → {tokens // 2}" in report, report
    assert "unmerged: " not in report, report
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before


def test_no_family_is_untested() -> None:
    tested = {family_of(case()[0]).name for case in CASES} | {"unet"}
    assert tested == {family.name for family in FAMILIES}
