"""Other tools on the same model: caches, LoRA, offloading, quantisation, copies; in every order of coming and going."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import accelerate
import diffusers
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
from DeepCache import DeepCacheSDHelper
from diffusers.hooks import HookRegistry, apply_group_offloading
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tests.tiny import Tiny

LONG = pytest.param("sdxl", marks=pytest.mark.slow)  # several times the others
ORDERS = list(product(("tool first", "patch first"), repeat=2))  # who comes first, who leaves first
STEPS = 6


def draw(drawer: Tiny) -> Tensor:
    """Latents: what decodes them is not our business."""
    return drawer.draw(num_inference_steps=STEPS, output_type="latent")


def apply(drawer: Tiny) -> tomadiff.Patch:
    """Plans are renewed within the few steps of a test."""
    renewed = tomadiff.Schedule(destinations_every=3, weights_every=1)
    return tomadiff.apply(drawer.pipe, 0.5, schedule=renewed)


def draw_merged(drawer: Tiny) -> Tensor:
    with apply(drawer):
        return draw(drawer)


class Tool:
    """Something else that wraps modules of a model: how to put it on, and how to take it off."""

    def __init__(self, on: Callable[[Tiny], Any], off: Callable[[Tiny], Any]) -> None:
        self.on, self.off = on, off


def assert_at_peace(name: str, tool: Tool, changes: bool, orders: list[tuple[str, str]] = ORDERS) -> None:
    """A tool and a patch give the same picture in both orders, and each can leave first.

    ``changes`` says whether the tool alone changes pictures (a cache) or must not (offloading).
    """
    drawer = tiny.build(name)
    plain, merged, alone = draw(drawer), draw_merged(drawer), _alone(drawer, tool)
    assert torch.equal(alone, plain) != changes
    together = None
    for comes, leaves in orders:
        patch = _put_on_both(drawer, tool, comes)
        picture = draw(drawer)
        together = picture if together is None else together
        assert torch.equal(picture, together), f"another picture with {comes}"
        _take_off(drawer, tool, patch, leaves)
        assert torch.equal(draw(drawer), merged if leaves == "tool first" else alone), f"{leaves} took both off"
        _take_off(drawer, tool, patch, "patch first" if leaves == "tool first" else "tool first")
        assert torch.equal(draw(drawer), plain), f"something stays when {leaves} left"
    assert together is not None
    assert torch.equal(together, merged) != changes
    assert not torch.equal(together, alone)


def _take_off(drawer: Tiny, tool: Tool, patch: tomadiff.Patch, what: str) -> None:
    if what == "tool first":
        tool.off(drawer)
    else:
        patch.remove()


def _alone(drawer: Tiny, tool: Tool) -> Tensor:
    tool.on(drawer)
    picture = draw(drawer)
    tool.off(drawer)
    return picture


def _put_on_both(drawer: Tiny, tool: Tool, first: str) -> tomadiff.Patch:
    if first == "tool first":
        tool.on(drawer)
        return apply(drawer)
    patch = apply(drawer)
    tool.on(drawer)
    return patch


# ---------------------------------------------------------------------------------------------- caches
def _cache(config: Callable[[Any], Any]) -> Tool:
    return Tool(
        lambda drawer: drawer.model.enable_cache(config(drawer.pipe)), lambda drawer: drawer.model.disable_cache()
    )


CACHES = {
    "first block": lambda _: diffusers.FirstBlockCacheConfig(threshold=0.5),
    "TaylorSeer": lambda _: diffusers.TaylorSeerCacheConfig(cache_interval=3, disable_cache_before_step=2),
    "MagCache": lambda _: diffusers.MagCacheConfig(
        threshold=0.5, retention_ratio=0.1, num_inference_steps=STEPS, mag_ratios=torch.ones(STEPS)
    ),
    "pyramid attention broadcast": lambda pipe: diffusers.PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 1001),
        current_timestep_callback=lambda: pipe.current_timestep,
    ),
    "FasterCache": lambda pipe: diffusers.FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 801),  # the first step has nothing to skip to yet
        current_timestep_callback=lambda: pipe.current_timestep,
        attention_weight_callback=lambda _: 0.3,
        is_guidance_distilled=True,
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_caches(name: str) -> None:
    assert_at_peace("flux", _cache(CACHES[name]), changes=True)


@pytest.mark.slow
def test_deepcache() -> None:
    helpers: list[Any] = []

    def put_on(drawer: Tiny) -> None:
        helpers.append(DeepCacheSDHelper(drawer.pipe))
        helpers[-1].set_params(cache_interval=2)
        helpers[-1].enable()

    assert_at_peace("sdxl", Tool(put_on, lambda _: helpers.pop().disable()), changes=True)


# ---------------------------------------------------------------------------------------------- offloading
def _ops(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith(("attn", "attn1", "attn2", "ff"))]


def _hook_ops(drawer: Tiny) -> None:
    for module in [drawer.model, *_ops(drawer.model)]:
        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))


def _unhook(drawer: Tiny) -> None:
    remove_hook_from_module(drawer.model, recurse=True)


def _offload_groups(**how: Any) -> Tool:
    cpu = torch.device("cpu")
    return Tool(
        lambda drawer: apply_group_offloading(drawer.model, onload_device=cpu, offload_device=cpu, **how),
        lambda drawer: HookRegistry.check_if_exists_or_initialize(drawer.model).remove_hook(
            "group_offloading", recurse=True
        ),
    )


OFFLOADING = {
    "hooks on model and ops": Tool(_hook_ops, _unhook),
    # what pipe.enable_model_cpu_offload() does, which itself insists on a GPU
    "whole model": Tool(lambda drawer: accelerate.cpu_offload_with_hook(drawer.model, "cpu"), _unhook),
    "groups of blocks": _offload_groups(offload_type="block_level", num_blocks_per_group=1),
    "leaves": _offload_groups(offload_type="leaf_level"),
}


@pytest.mark.parametrize("name", OFFLOADING)
def test_offloading(name: str) -> None:
    assert_at_peace("flux", OFFLOADING[name], changes=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hooks on model and ops", "leaves"])
def test_offloading_of_a_unet(name: str) -> None:
    assert_at_peace("sdxl", OFFLOADING[name], changes=False)


@pytest.mark.parametrize("first", ["tool first", "patch first"])
def test_sequential_offloading(first: str) -> None:
    """Weights are on the meta device between calls, and come in layer by layer; taking it off leaves them there."""
    drawer = tiny.build("flux")
    merged = draw_merged(drawer)
    tool = Tool(lambda drawer: accelerate.cpu_offload(drawer.model, execution_device="cpu"), _unhook)
    patch = _put_on_both(drawer, tool, first)
    assert next(drawer.model.parameters()).device.type == "meta"
    assert torch.equal(draw(drawer), merged)
    patch.remove()
    assert not torch.equal(draw(drawer), merged)


@pytest.mark.parametrize("first", ["tool first", "patch first"])
def test_cache_and_offloading_at_once(first: str) -> None:
    """Three tools on one forward, whichever lies on top."""
    drawer = tiny.build("flux")
    plain = draw(drawer)
    cache = _cache(CACHES["pyramid attention broadcast"])
    cache.on(drawer)
    patch = apply(drawer)
    expected = draw(drawer)
    patch.remove()
    cache.off(drawer)
    if first == "tool first":
        _hook_ops(drawer)
        patch = apply(drawer)
        cache.on(drawer)
    else:
        patch = apply(drawer)
        cache.on(drawer)
        _hook_ops(drawer)
    assert torch.equal(draw(drawer), expected)
    patch.remove()
    if first == "tool first":
        cache.off(drawer)
        _unhook(drawer)
    else:
        _unhook(drawer)
        cache.off(drawer)
    assert torch.equal(draw(drawer), plain)


# ---------------------------------------------------------------------------------------------- LoRA
def _add_lora(drawer: Tiny) -> None:
    torch.manual_seed(3)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    drawer.model.add_adapter(LoraConfig(r=2, target_modules=targets, init_lora_weights=False), adapter_name="style")


def _save_lora(name: str, folder: Path) -> None:
    drawer = tiny.build(name)
    _add_lora(drawer)
    layers = get_peft_model_state_dict(drawer.model, adapter_name="style")
    drawer.pipe.save_lora_weights(folder, **{f"{drawer.part}_lora_layers": layers})


@pytest.mark.parametrize("family", [LONG, "flux", "sd3"])
def test_lora_on_the_model(family: str) -> None:
    tool = Tool(_add_lora, lambda drawer: drawer.model.delete_adapters("style") or drawer.pipe.unload_lora_weights())
    assert_at_peace(family, tool, changes=True, orders=ORDERS[:1] + ORDERS[-1:])


@pytest.mark.parametrize("family", [LONG, "flux"])
def test_lora_files(family: str, tmp_path: Path) -> None:
    _save_lora(family, tmp_path)
    tool = Tool(
        lambda drawer: drawer.pipe.load_lora_weights(tmp_path), lambda drawer: drawer.pipe.unload_lora_weights()
    )
    assert_at_peace(family, tool, changes=True, orders=ORDERS[:1] + ORDERS[-1:])


@pytest.mark.parametrize("family", [LONG, "flux"])
def test_fusing_and_unfusing_a_lora(family: str, tmp_path: Path) -> None:
    """Fusing rounds weights, and selection jumps on rounding: so compare with the other order, not with before."""
    _save_lora(family, tmp_path)
    early, late = tiny.build(family), tiny.build(family)
    patch = apply(early)
    for change in (
        lambda pipe: pipe.load_lora_weights(tmp_path, adapter_name="style"),
        lambda pipe: pipe.fuse_lora(),
        lambda pipe: pipe.unfuse_lora(),
        lambda pipe: pipe.unload_lora_weights(),
    ):
        change(early.pipe)
        change(late.pipe)
        assert torch.equal(draw(early), draw_merged(late))
    patch.remove()
    assert torch.equal(draw(early), draw(late))


# ---------------------------------------------------------------------------------------------- copies and files
@pytest.mark.parametrize("family", [LONG, "flux", "wan"])
def test_saved_models_are_clean(family: str, tmp_path: Path) -> None:
    drawer = tiny.build(family)
    fixed = tomadiff.ToMA.tile(0.5, selector="strided")  # rounding moves other destinations
    plain, keys = draw(drawer), list(drawer.model.state_dict())
    patch = tomadiff.apply(drawer.pipe, fixed)
    merged = draw(drawer)
    assert list(drawer.model.state_dict()) == keys
    drawer.model.save_pretrained(tmp_path)
    loaded = type(drawer.model).from_pretrained(tmp_path).eval()
    assert "tomadiff" not in (tmp_path / "config.json").read_text()
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, drawer.model.state_dict()[name])
    setattr(drawer.pipe, drawer.part, loaded)  # weights that lie elsewhere in memory: some CPUs round otherwise then
    assert torch.allclose(draw(drawer), plain, atol=1e-5)
    with tomadiff.apply(drawer.pipe, fixed):
        assert torch.allclose(draw(drawer), merged, atol=1e-4)
    patch.remove()


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_copies_are_patched_on_their_own(family: str) -> None:
    """A deep copy of a patched model merges too; its groups are its own, and so is its removal."""
    drawer = tiny.build(family)
    plain = draw(drawer)
    patch = apply(drawer)
    merged, original = draw(drawer), drawer.model
    twin = copy.deepcopy(original)
    setattr(drawer.pipe, drawer.part, twin)
    assert torch.equal(draw(drawer), merged)
    patch.remove()
    assert torch.equal(draw(drawer), merged), "removing from the original reached the copy"
    tomadiff.remove(twin)
    assert torch.equal(draw(drawer), plain)
    setattr(drawer.pipe, drawer.part, original)
    assert torch.equal(draw(drawer), plain)
    assert vars(twin).keys() == vars(original).keys()


@pytest.mark.parametrize("family", [LONG, "flux", "wan"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_changing_the_dtype(family: str, dtype: torch.dtype) -> None:
    drawer = tiny.build(family)
    with apply(drawer):
        draw(drawer)
        drawer.pipe.to(dtype)
        early = draw(drawer)
    assert torch.equal(early, draw_merged(drawer))
    assert early.isfinite().all()


def test_autocast() -> None:
    drawer = tiny.build("flux")
    with apply(drawer) as patch, torch.autocast("cpu", torch.bfloat16):
        assert draw(drawer).isfinite().all()
    (model,) = patch.report().models
    assert not model.bypassed


def test_weights_stored_in_eight_bits() -> None:
    """Layerwise casting: the parameters' dtype is not the one of hidden states."""
    drawer = tiny.build("flux")
    drawer.model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    with apply(drawer) as patch:
        early = draw(drawer)
    assert early.isfinite().all()
    assert patch.report().models[0].merged
    assert not patch.report().models[0].bypassed


# ---------------------------------------------------------------------------------------------- other pipelines
def _img2img(pipe: Any) -> Any:
    return diffusers.StableDiffusionXLImg2ImgPipeline.from_pipe(pipe)


def _redraw(pipe: Any) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    settings = {"strength": 0.6, "num_inference_steps": 10, "output_type": "pt"}
    result = pipe("a fox", image=picture, generator=torch.Generator().manual_seed(0), **settings).images
    assert isinstance(result, Tensor)
    return result


def test_pipelines_that_share_the_model() -> None:
    drawer = tiny.build("sdxl")
    other = _img2img(drawer.pipe)
    plain, plain_text = _redraw(other), draw(drawer)
    with tomadiff.apply(other, 0.5):
        expected = _redraw(other)
    assert not torch.equal(expected, plain)
    with tomadiff.apply(drawer.pipe, 0.5):
        draw(drawer)
        assert torch.equal(_redraw(_img2img(drawer.pipe)), expected)
    assert torch.equal(_redraw(other), plain)
    assert torch.equal(draw(drawer), plain_text)


def test_a_pipeline_that_shares_the_model_but_not_the_scheduler() -> None:
    """The patch knows the scheduler of the pipeline it was applied to, and sees that another one drives the model."""
    drawer = tiny.build("sdxl")
    other = _img2img(drawer.pipe)
    other.scheduler = diffusers.EulerDiscreteScheduler.from_config(drawer.pipe.scheduler.config)
    schedule = tomadiff.Schedule(destinations_every=2, weights_every=1)
    with tomadiff.apply(other, 0.5, schedule=schedule) as patch:
        _redraw(other)
        levels = patch.report().models[0].levels
    with tomadiff.apply(drawer.pipe, 0.5, schedule=schedule) as patch:
        draw(drawer)
        before = patch.report().models[0].levels
        _redraw(other)
        after = patch.report().models[0].levels
    for own, earlier, later in zip(levels, before, after, strict=True):
        assert later.plans_made - earlier.plans_made == own.plans_made
        assert later.weights_made - earlier.weights_made == own.weights_made
        assert later.bytes_held == own.bytes_held


def test_controlnet() -> None:
    drawer = tiny.build("sd15")
    torch.manual_seed(5)
    control = diffusers.ControlNetModel.from_unet(
        drawer.pipe.unet, conditioning_embedding_out_channels=(8, 16), load_weights_from_unet=False
    ).eval()
    for parameter in control.controlnet_mid_block.parameters():  # zero at first, so it would steer nothing
        nn.init.normal_(parameter)
    pipe = diffusers.StableDiffusionControlNetPipeline(**drawer.pipe.components, controlnet=control)
    steered = Tiny(pipe, {**drawer.settings, "image": torch.rand(1, 3, 64, 64)})
    plain, unsteered = draw(steered), draw_merged(drawer)
    with apply(steered) as patch:
        merged = draw(steered)
        (model,) = patch.report().models
    assert not torch.equal(merged, plain)
    assert not torch.equal(merged, unsteered)
    assert not model.bypassed
    assert torch.equal(draw(steered), plain)


def _give_ip_adapter(unet: Any) -> None:
    """As loading an IP-Adapter does: processors with weights of their own on every cross-attention."""
    from diffusers.models.attention_processor import AttnProcessor2_0, IPAdapterAttnProcessor2_0
    from diffusers.models.embeddings import ImageProjection, MultiIPAdapterImageProjection

    torch.manual_seed(4)
    width = unet.config.cross_attention_dim
    processors = {}
    for name in unet.attn_processors:
        attention = unet.get_submodule(name.removesuffix(".processor"))
        inner = attention.to_q.out_features
        processors[name] = (
            IPAdapterAttnProcessor2_0(inner, width, num_tokens=(4,)) if "attn2" in name else AttnProcessor2_0()
        )
    unet.set_attn_processor(processors)
    unet.encoder_hid_proj = MultiIPAdapterImageProjection([ImageProjection(16, width, num_image_text_embeds=4)])
    unet.config.encoder_hid_dim_type = "ip_image_proj"


def test_ip_adapter() -> None:
    def run(unet: Any, weight: float = 1.0) -> Tensor:
        torch.manual_seed(6)
        picture = {"image_embeds": [weight * torch.randn(1, 1, 16)]}
        with torch.no_grad():
            out: Tensor = unet(torch.randn(1, 4, 32, 32), 500, torch.randn(1, 7, 32), added_cond_kwargs=picture)[0]
        return out

    early, late = tiny.build("sd15").model, tiny.build("sd15").model
    patch = tomadiff.apply(early, 0.5)
    for unet in (early, late):
        _give_ip_adapter(unet)
    merged = run(early)
    assert not torch.equal(run(early, weight=3.0), merged)
    assert not patch.report().models[0].bypassed
    with tomadiff.apply(late, 0.5):
        assert torch.equal(run(late), merged)
    patch.remove()
    assert torch.equal(run(early), run(late))
    assert not torch.equal(run(early), merged)


# ---------------------------------------------------------------------------------------------- quantisation
def _quantise(model: nn.Module) -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    try:
        torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    except (ImportError, RuntimeError) as error:  # it brings compiled parts that need their own torch
        pytest.skip(f"torchao does not work here: {error}")


@pytest.mark.parametrize("family", ["flux", "sdxl"])
def test_quantised_weights(family: str) -> None:
    early, late = tiny.build(family), tiny.build(family)
    full = draw(early)
    patch = apply(early)
    for drawer in (early, late):
        _quantise(drawer.model)
    plain = draw(late)
    assert not torch.equal(plain, full)
    assert torch.equal(draw(early), draw_merged(late))
    assert not patch.report().models[0].bypassed
    patch.remove()
    assert torch.equal(draw(early), plain)
