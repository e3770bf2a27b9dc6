"""Forecasts beside other tools and in every kind of pipeline: adapters, offloading, caches, inpainting, interrupts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from DeepCache import DeepCacheSDHelper
from torch import Tensor

import tomadiff
from tests import tiny
from tests.engine.test_forecast_model import EVERY, counted
from tests.families.test_pipelines import WAYS
from tests.families.test_together import CACHES, OFFLOADING, _add_lora, _give_ip_adapter
from tomadiff import Forecast
from tomadiff.errors import PatchError

STEPS = 8
COMPUTED = (0, 1, 2, 4, 6)  # by EVERY, of eight steps


def generate(one: tiny.Tiny, **settings: Any) -> Tensor:
    return one.draw(num_inference_steps=STEPS, output_type="latent", **settings)


def forecast(one: tiny.Tiny, **settings: Any) -> Tensor:
    """An image with a patch of its own."""
    with tomadiff.apply(one.pipe, forecast=EVERY):
        return generate(one, **settings)


# ---------------------------------------------------------------------------------------------- adapters
@pytest.mark.parametrize("family", [pytest.param("sd15", marks=pytest.mark.slow), "flux"])
def test_a_lora_that_comes_and_goes(family: str) -> None:
    one = tiny.build(family)
    plain, alone = generate(one), forecast(one)
    _add_lora(one)
    styled = forecast(one)
    assert not torch.equal(styled, alone)
    one.model.disable_adapters()
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    assert torch.equal(generate(one), alone)
    one.model.enable_adapters()
    assert torch.equal(generate(one), styled)
    one.model.delete_adapters("style")
    assert torch.equal(generate(one), alone)
    patch.remove()
    assert torch.equal(generate(one), plain)


def test_an_ip_adapter() -> None:
    one = tiny.build("sd15")
    _give_ip_adapter(one.model)
    embeds = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1))
    one.settings["ip_adapter_image_embeds"] = [torch.cat([torch.zeros_like(embeds), embeds])]
    plain = generate(one)
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch, counted(one.model) as calls:
        first = generate(one)
        assert len(calls) == len(COMPUTED)
        assert patch.pattern.computed == COMPUTED
        other = generate(one, ip_adapter_image_embeds=[torch.cat([torch.zeros_like(embeds), -embeds])])
        assert torch.equal(generate(one), first)
    assert not torch.equal(first, other)
    assert not torch.equal(first, plain)
    assert torch.equal(generate(one), plain)


# ---------------------------------------------------------------------------------------------- offloading
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", OFFLOADING)
def test_offloading(name: str, first: bool) -> None:
    one, tool = tiny.build("flux"), OFFLOADING[name]
    plain, alone = generate(one), forecast(one)
    if first:
        tool.on(one)
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    if not first:
        tool.on(one)
    assert torch.equal(generate(one), alone)
    tool.off(one)
    assert torch.equal(generate(one), alone)
    tool.on(one)
    patch.remove()
    assert torch.equal(generate(one), plain)
    tool.off(one)
    assert torch.equal(generate(one), plain)


# ---------------------------------------------------------------------------------------------- other caches
@pytest.mark.parametrize("name", CACHES)
def test_caches_of_diffusers_are_refused_in_both_orders(name: str) -> None:
    one = tiny.build("flux")
    plain = generate(one)
    config = CACHES[name](one.pipe)
    one.model.enable_cache(config)
    with pytest.raises(PatchError, match="do not go with other caches"):
        tomadiff.apply(one.pipe, forecast=EVERY)
    one.model.disable_cache()
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    alone = generate(one)
    one.model.enable_cache(config)
    with pytest.raises(PatchError, match="do not go with other caches"):
        generate(one)
    one.model.disable_cache()
    assert torch.equal(generate(one), alone)
    patch.remove()
    assert torch.equal(generate(one), plain)


def test_deepcache_is_refused_in_both_orders() -> None:
    one = tiny.build("sd15")
    plain = generate(one)
    helper = DeepCacheSDHelper(one.pipe)
    helper.set_params(cache_interval=2)
    helper.enable()
    with pytest.raises(PatchError, match="DeepCache"):
        tomadiff.apply(one.pipe, forecast=EVERY)
    helper.disable()
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    alone = generate(one)
    helper.enable()
    with pytest.raises(PatchError, match="DeepCache"):
        generate(one)
    helper.disable()
    assert torch.equal(generate(one), alone)
    patch.remove()
    assert torch.equal(generate(one), plain)


# ---------------------------------------------------------------------------------------------- kinds of pipelines
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_start_from_an_image(way: str) -> None:
    build, inputs, _ = WAYS[way]
    pipe = build(tiny.build("sdxl"))
    one = tiny.Tiny(pipe, inputs())
    with counted(pipe.unet) as calls:
        plain = generate(one)
    full = len(calls)
    with tomadiff.apply(pipe, forecast=Forecast(every=2, start=1)) as patch, counted(pipe.unet) as calls:
        first, second = generate(one), generate(one)
        pattern = patch.pattern
    assert torch.equal(first, second)
    assert len(pattern.computed) + len(pattern.forecast) == full
    assert len(calls) == 2 * len(pattern.computed) < 2 * full
    assert torch.equal(generate(one), plain)


# ---------------------------------------------------------------------------------------------- interrupts, callbacks
def test_an_interrupt_leaves_the_next_image_alone() -> None:
    one = tiny.build("sdxl")

    def stop(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= 3
        return inputs

    with tomadiff.apply(one.pipe, forecast=EVERY) as patch:
        image = generate(one)
        generate(one, callback_on_step_end=stop)
        assert patch.pattern.computed == (0, 1, 2)
        assert patch.pattern.forecast == (3,)
        assert not patch._forecasts.parts[0]._forecaster._passes, "the memory is given back"
        assert torch.equal(generate(one), image)


def _change_latents(_: Any, step: int, __: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"latents": inputs["latents"] * (1.5 if step == 3 else 1)}


def _write_latents(_: Any, step: int, __: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    inputs["latents"].mul_(1.5 if step == 3 else 1)
    return {}


@pytest.mark.parametrize("callback", [_change_latents, _write_latents])
def test_a_callback_sees_every_step_and_may_change_latents(callback: Callable[..., Any]) -> None:
    one, steps = tiny.build("sdxl"), []

    def called(pipe: Any, step: int, time: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        steps.append(step)
        return callback(pipe, step, time, inputs)  # type: ignore[no-any-return]

    with tomadiff.apply(one.pipe, forecast=EVERY):
        image = generate(one)
        changed = generate(one, callback_on_step_end=called)
        assert steps == list(range(STEPS))
        assert torch.equal(generate(one, callback_on_step_end=called), changed)
        assert not torch.equal(changed, image)
        assert torch.equal(generate(one), image)


def test_an_exception_inside_the_model_leaves_the_next_image_alone() -> None:
    one = tiny.build("flux")

    def fail(*_: Any) -> None:
        raise MemoryError

    with tomadiff.apply(one.pipe, forecast=EVERY) as patch:
        image = generate(one)
        handle = one.model.transformer_blocks[0].register_forward_pre_hook(
            lambda *_: fail() if patch.pattern.computed[-1] == COMPUTED[-2] else None
        )
        with pytest.raises(MemoryError):
            generate(one)
        handle.remove()
        assert torch.equal(generate(one), image)


def test_a_batch_of_another_size_and_guidance_in_between() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch:
        image = generate(one)
        generate(one, prompt=["a fox", "a hen"])
        generate(one, guidance_scale=1.0)
        generate(one, height=32, width=96)
        one.draw(num_inference_steps=20, output_type="latent")
        assert len(patch.pattern.computed) + len(patch.pattern.forecast) == 20
        assert torch.equal(generate(one), image)


def test_a_bare_model_and_from_pipe_after_the_first_is_gone() -> None:
    one = tiny.build("sdxl")
    image = forecast(one)
    tomadiff.apply(one.model, forecast=EVERY)
    other = diffusers.StableDiffusionXLPipeline.from_pipe(one.pipe)
    settings, one = one.settings, None  # type: ignore[assignment]
    assert torch.equal(generate(tiny.Tiny(other, settings)), image)
