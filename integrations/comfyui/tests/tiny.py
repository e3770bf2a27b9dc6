"""ComfyUI's own models, as small as tests want them: with random weights, or with those of a model of diffusers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import host as host  # first: it says where ComfyUI is

import comfy.cldm.cldm  # isort: skip
import comfy.controlnet
import comfy.model_base
import comfy.model_patcher
import comfy.ops
import comfy.sample
import comfy.samplers
import comfy.supported_models
import comfy.utils

TEXT = 12  # tokens


def patcher(model: Any) -> Any:
    """What ComfyUI hands around as a model."""
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(model.eval(), cpu, cpu)


def filled(model: nn.Module, seed: int = 0) -> None:
    """Random weights: ComfyUI leaves them as they come from the allocator."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        scale = 1.0 if weight.dim() < 2 else weight[0].numel() ** -0.5
        fresh = torch.randn(weight.shape, generator=generator) * scale
        weight.data = 1 + 0.1 * fresh if weight.dim() == 1 and name.endswith("weight") else fresh * 0.5


# ---------------------------------------------------------------------------------------------- UNets
class _Width(int):
    """ComfyUI multiplies; widths of small models are no whole multiples of the first."""

    def __mul__(self, _: int) -> int:
        return int(self)

    __rmul__ = __mul__


def unet(source: Any, xl: bool = True, kind: str = "EPS") -> Any:
    """A UNet of diffusers as ComfyUI's, with the same weights."""
    given, levels = source.config, len(source.config.block_out_channels)
    layers, count = given.layers_per_block, given.transformer_layers_per_block
    counts = [count] * levels if isinstance(count, int) else list(count)
    depths = [depth * kind.startswith("CrossAttn") for depth, kind in zip(counts, given.down_block_types, strict=True)]
    settings = {
        "image_size": 32,
        "in_channels": given.in_channels,
        "out_channels": given.out_channels,
        "model_channels": given.block_out_channels[0],
        "channel_mult": [_Width(width) for width in given.block_out_channels],
        "num_res_blocks": [layers] * levels,
        "transformer_depth": [depth for depth in depths for _ in range(layers)],
        "transformer_depth_output": [depth for depth in depths for _ in range(layers + 1)],
        "transformer_depth_middle": counts[-1],
        "use_spatial_transformer": True,
        "legacy": False,
        "context_dim": given.cross_attention_dim,
        "use_linear_in_transformer": given.use_linear_projection,
        "num_classes": "sequential" if xl else None,
        "adm_in_channels": given.projection_class_embeddings_input_dim,
        "dtype": source.dtype,
    }
    config = (comfy.supported_models.SDXL if xl else comfy.supported_models.SD15)(settings)
    config.unet_config.update(num_heads=1, num_head_channels=-1)
    config.custom_operations = _with_groups(given.norm_num_groups)
    config.unet_config["use_scale_shift_norm"] = given.resnet_time_scale_shift == "scale_shift"
    predicts = getattr(comfy.model_base.ModelType, kind)
    made = comfy.model_base.SDXL(config, predicts) if xl else comfy.model_base.BaseModel(config, predicts)
    if xl:
        made.embedder = comfy.model_base.Timestep(given.addition_time_embed_dim)
    _adopt(made.diffusion_model, source)
    _load(made.diffusion_model, source, comfy.utils.unet_to_diffusers(config.unet_config))
    return patcher(made)


def _with_groups(count: int) -> Any:
    """ComfyUI's layers, with other norms than those of 32 groups that all of its UNets have."""

    class Operations(comfy.ops.disable_weight_init):
        class GroupNorm(comfy.ops.disable_weight_init.GroupNorm):
            def __init__(self, num_groups: int, num_channels: int, **settings: Any) -> None:
                super().__init__(count, num_channels, **settings)

    return Operations


def controlnet(model: Any, groups: int = 2) -> tuple[Any, nn.Module]:
    """What nodes hand around as a ControlNet for a UNet, and the module inside."""
    settings = {**model.model.model_config.unet_config, "hint_channels": 3, "operations": _with_groups(groups)}
    settings["dtype"] = torch.float32  # ComfyUI's ControlNets know no float64
    for name in ("out_channels", "transformer_depth_output"):
        settings.pop(name)
    lists = {name: value[:] for name, value in settings.items() if isinstance(value, list)}
    net = comfy.cldm.cldm.ControlNet(**{**settings, **lists}).eval()
    filled(net)
    cpu = torch.device("cpu")
    return comfy.controlnet.ControlNet(net, load_device=cpu), net


def _adopt(model: Any, source: Any) -> None:
    """ComfyUI has one number of heads for all UNets."""
    theirs = {module.to_q.in_features: module.heads for module in source.modules() if hasattr(module, "to_q")}
    for module in model.modules():
        if hasattr(module, "to_q"):
            module.heads = theirs[module.to_q.in_features]


# ---------------------------------------------------------------------------------------------- Flux
def flux(source: Any) -> Any:
    """A Flux of diffusers as ComfyUI's, with the same weights."""
    given = source.config
    settings = {
        "image_model": "flux",
        "in_channels": given.in_channels // 4,
        "out_channels": given.in_channels // 4,
        "patch_size": 2,
        "vec_in_dim": given.pooled_projection_dim,
        "context_in_dim": given.joint_attention_dim,
        "hidden_size": given.attention_head_dim * given.num_attention_heads,
        "mlp_ratio": 4.0,
        "num_heads": given.num_attention_heads,
        "depth": given.num_layers,
        "depth_single_blocks": given.num_single_layers,
        "axes_dim": list(given.axes_dims_rope),
        "theta": 10000,
        "qkv_bias": True,
        "guidance_embed": given.guidance_embeds,
        "dtype": source.dtype,
    }
    config = comfy.supported_models.Flux(settings)
    config.latent_format.latent_channels = given.in_channels // 4
    made = comfy.model_base.Flux(config)
    _load(made.diffusion_model, source, comfy.utils.flux_to_diffusers(settings))
    return patcher(made)


# ---------------------------------------------------------------------------------------------- Stable Diffusion 3
def sd3(source: Any) -> Any:
    """A transformer of Stable Diffusion 3 of diffusers as ComfyUI's, with the same weights; its heads are of 64."""
    given = source.config
    width = given.attention_head_dim * given.num_attention_heads
    settings = {
        "patch_size": given.patch_size,
        "in_channels": given.in_channels,
        "depth": given.num_layers,
        "adm_in_channels": given.pooled_projection_dim,
        "num_patches": given.pos_embed_max_size**2,
        "pos_embed_max_size": given.pos_embed_max_size,
        "qk_norm": "rms" if given.qk_norm else None,
        "x_block_self_attn_layers": list(given.dual_attention_layers),
        "context_embedder_config": {
            "target": "torch.nn.Linear",
            "params": {"in_features": given.joint_attention_dim, "out_features": width},
        },
        "dtype": source.dtype,
    }
    config = comfy.supported_models.SD3(settings)
    config.latent_format.latent_channels = given.in_channels
    made = comfy.model_base.SD3(config)
    _load(made.diffusion_model, source, comfy.utils.mmdit_to_diffusers(settings))
    made.model_config.unet_config["context_dim"] = given.joint_attention_dim
    return patcher(made)


def _load(model: nn.Module, source: nn.Module, names: dict[str, Any]) -> None:
    """Every weight of ``model`` from ``source``; names may come with a part of the target and a change."""
    own = dict(model.state_dict())
    missing = set(own)
    for theirs, weight in source.state_dict().items():
        target = names[theirs]
        name, *more = target if isinstance(target, tuple) else (target,)
        place = own[name]
        if more and more[0] is not None:
            place = place.narrow(*more[0])
        place.copy_(more[1](weight) if len(more) > 1 else weight)
        missing.discard(name)
    assert not missing, missing


# ---------------------------------------------------------------------------------------------- runs
def text(model: Any, seed: int, pooled: int | None = None, **others: Any) -> list[Any]:
    """A condition as text encoders make it."""
    generator = torch.Generator().manual_seed(seed)
    config = model.model.model_config.unet_config
    width = config.get("context_dim") or config.get("context_in_dim")
    found = {"pooled_output": torch.randn(1, pooled, generator=generator)} if pooled else {}
    return [[torch.randn(1, TEXT, width, generator=generator), {**found, **others}]]


def sample(
    model: Any,
    positive: list[Any],
    negative: list[Any],
    steps: int = 6,
    cfg: float = 3.0,
    sampler: str = "euler",
    size: tuple[int, int] = (32, 32),
    batch: int = 1,
    seed: int = 0,
    channels: int = 4,
    sigmas: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """A run of a sampler, as the node of ComfyUI makes it."""
    latent = torch.zeros(batch, channels, *size)
    noise = comfy.sample.prepare_noise(latent, seed)
    if sigmas is None:
        sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "normal", steps)
    chosen = comfy.samplers.sampler_object(sampler)
    with torch.inference_mode():
        result = comfy.sample.sample_custom(
            model, noise, cfg, chosen, sigmas, positive, negative, latent, disable_pbar=True, seed=seed, **others
        )
    assert isinstance(result, Tensor)
    return result.clone()
