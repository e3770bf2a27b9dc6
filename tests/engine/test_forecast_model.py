"""Forecasts on real pipelines: which calls reach the model, and that nothing else changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import denoisers, tiny
from tests.engine.test_driver import generate_by_blocks, modular
from tests.steps.test_forecast import CountReads
from tomadiff import Forecast
from tomadiff.errors import SettingError

FAMILIES = ("sd15", "sdxl", "flux", "sd3", "pixart", "wan")
EVERY = Forecast(every=2, start=0.3)
STEPS = 8


@contextmanager
def counted(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inputs of all calls that reach the model."""
    calls: list[Any] = []
    handle = model.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def draw(one: tiny.Tiny, **settings: Any) -> Tensor:
    return one.draw(num_inference_steps=STEPS, **settings)


def state(model: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if not name.startswith("_forward")}


# ---------------------------------------------------------------------------------------------- on and off
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_skipped_and_removal_is_exact(family: str) -> None:
    one = tiny.build(family)
    plain, before = draw(one), set(vars(one.model))
    with counted(one.model) as calls:
        draw(one)
    full = len(calls)
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    with counted(one.model) as calls:
        first, second = draw(one), draw(one)
    assert len(calls) == 2 * full * 5 // 8
    assert torch.equal(first, second)
    assert not torch.equal(first, plain)
    assert patch.pattern.computed == (0, 1, 2, 4, 6)
    assert "5 of 8 steps computed" in patch.summary()
    patch.remove()
    assert torch.equal(draw(one), plain)
    assert set(vars(one.model)) == before


def test_tolerance_zero_is_exact() -> None:
    one = tiny.build("sdxl")
    plain = draw(one)
    patch = tomadiff.apply(one.pipe, forecast=0)
    assert torch.equal(draw(one), plain)
    patch.set(forecast=EVERY)
    assert not torch.equal(draw(one), plain)
    patch.set(forecast=0)
    assert torch.equal(draw(one), plain)


def test_an_explicit_ratio_adds_no_forecast() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, 0.5, guard=False) as patch:
        assert patch.forecast is None
        alone = draw(one)
    with tomadiff.apply(one.pipe, 0.5, guard=False, forecast=0):
        assert torch.equal(draw(one), alone)


def test_a_measured_pattern_replays() -> None:
    one = tiny.build("flux")
    patch = tomadiff.apply(one.pipe, forecast=1.0)
    image = one.draw(num_inference_steps=12)
    pattern = patch.pattern
    assert pattern.forecast
    assert len(pattern.errors) == len(pattern.forecast)
    patch.set(forecast=Forecast(steps=pattern.computed))
    assert torch.equal(one.draw(num_inference_steps=12), image)
    assert patch.pattern.computed == pattern.computed


def test_other_numbers_of_steps_and_sizes_in_between() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, forecast=EVERY):
        image = draw(one)
        one.draw(num_inference_steps=4), one.draw(num_inference_steps=1)
        draw(one, height=32, width=32)
        assert torch.equal(draw(one), image)


def test_apply_again_replaces_and_remove_finds_it() -> None:
    one = tiny.build("sdxl")
    plain = draw(one)
    tomadiff.apply(one.pipe, forecast=EVERY)
    second = tomadiff.apply(one.pipe, 0.5, guard=False, forecast=EVERY)
    assert second.active
    tomadiff.apply(one.pipe, forecast=EVERY)
    assert not second.active or not second._models[0].is_on
    tomadiff.remove(one.pipe)
    assert torch.equal(draw(one), plain)


@pytest.mark.parametrize("wrong", ["much", True, -1, 2.0, [0.1]])
def test_a_wrong_forecast_is_refused(wrong: object) -> None:
    model = tiny.model("pixart")
    with pytest.raises(SettingError, match=r"tolerance|from 0 to 1"):
        tomadiff.apply(model, forecast=wrong)
    assert "_tomadiff_forecast" not in vars(model)


# ---------------------------------------------------------------------------------------------- with merging
def test_merging_counts_the_steps_that_are_not_computed() -> None:
    one = tiny.build("sdxl")
    patch = tomadiff.apply(one.pipe, 0.5, schedule=tomadiff.Schedule(3, 3), guard=False, forecast=EVERY)
    steps = []
    patch.watch(lambda name, group, tokens: steps.append(group.context.info.step))
    draw(one)
    assert sorted(set(steps)) == [0, 1, 2, 4, 6]
    assert all(level.plans_made for level in patch.report().models[0].levels)
    assert "Forecast" in patch.summary()
    assert "ToMA" in patch.summary()


def test_a_loop_of_ones_own() -> None:
    one = tiny.build("sdxl")
    unet, seen = one.model, []
    patch = tomadiff.apply(unet, 0.5, guard=False, forecast=Forecast(every=2, start=1))
    patch.watch(lambda name, group, tokens: seen.append(group.context.info.step))
    inputs = {
        "sample": torch.randn(1, 4, 8, 8),
        "encoder_hidden_states": torch.randn(1, 5, unet.config.cross_attention_dim),
        "added_cond_kwargs": {"text_embeds": torch.randn(1, 32), "time_ids": torch.zeros(1, 6)},
    }
    patch.begin(steps=7)
    with counted(unet) as calls, torch.no_grad():
        for step in range(7):
            patch.step(step)
            unet(timestep=1000 - 100 * step, **inputs)
    assert len(calls) == 4
    assert sorted(set(seen)) == [0, 1, 3, 5]


# ---------------------------------------------------------------------------------------------- passes and arguments
def test_separate_guidance_passes_have_histories_of_their_own() -> None:
    one = tiny.build("wan")
    with counted(one.model) as calls:
        draw(one, guidance_scale=1.0)
    alone = len(calls)
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch, counted(one.model) as calls:
        draw(one, guidance_scale=3.0)
        assert patch._forecasts.parts[0]._forecaster.pattern.computed == (0, 1, 2, 4, 6)
    assert len(calls) == 2 * alone * 5 // 8


def test_passes_without_a_name_are_told_apart_by_their_order() -> None:
    """The text is the only difference, so outputs of one pass in the place of the other's would be equal or swapped."""
    model = tiny.model("sd15")
    sample, *texts = (torch.randn(1, *size) for size in ((4, 8, 8), (5, 32), (5, 32)))
    with tomadiff.apply(model, forecast=Forecast(steps=(0, 1, 2))) as patch, counted(model) as calls, torch.no_grad():
        patch.begin(steps=5)
        outputs = []
        for step in range(5):
            patch.step(step)
            outputs.append([model(sample, 900 - step, text, return_dict=False)[0] for text in texts])
    assert len(calls) == 2 * 3
    for earlier, later in zip(outputs[2], outputs[4], strict=True):  # so near in time that little changes
        torch.testing.assert_close(later, earlier, rtol=0.05, atol=0.05)
    assert not torch.allclose(*outputs[4], rtol=0.05, atol=0.05)


def test_guidance_that_ends_early_starts_over() -> None:
    one = tiny.build("sd3")
    one.pipe.scheduler = diffusers.FlowMatchEulerDiscreteScheduler()

    def stop(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        if step == 3:
            pipe._guidance_scale = 0.0
            inputs["prompt_embeds"] = inputs["prompt_embeds"].chunk(2)[-1]
            inputs["pooled_prompt_embeds"] = inputs["pooled_prompt_embeds"].chunk(2)[-1]
        return inputs

    names = ["latents", "prompt_embeds", "pooled_prompt_embeds"]
    with tomadiff.apply(one.pipe, forecast=Forecast(every=2, start=1)) as patch:
        draw(one, guidance_scale=3.0, callback_on_step_end=stop, callback_on_step_end_tensor_inputs=names)
    assert 4 in patch.pattern.computed


def test_a_time_per_token_is_computed() -> None:
    one = tiny.build("wan")
    model = one.model
    hidden = torch.randn(1, model.config.in_channels, 1, 8, 8)
    tokens = 16
    text = torch.randn(1, 5, model.config.text_dim)
    patch = tomadiff.apply(model, forecast=EVERY)
    patch.begin(steps=6)
    with counted(model) as calls, torch.no_grad():
        for step in range(6):
            patch.step(step)
            model(hidden, torch.full((1, tokens), 900.0 - step), text)
    assert len(calls) == 6


def test_two_models_have_histories_of_their_own() -> None:
    one = tiny.build("wan")
    pipe = one.pipe
    pipe.register_modules(transformer_2=copy.deepcopy(pipe.transformer))
    pipe.register_to_config(boundary_ratio=0.9)
    plain = draw(one)
    with tomadiff.apply(pipe, forecast=Forecast(every=2, start=1)) as patch:
        draw(one)
        assert {report.component for report in patch.report().forecasts} == {"transformer", "transformer_2"}
        first, second = (report.pattern for report in patch.report().forecasts)
        seen = {*second.computed, *second.forecast}
        assert seen.isdisjoint({*first.computed, *first.forecast})
        assert second.forecast
        assert second.computed[0] == min(seen), "what the first expert gave is no past of the second's"
    assert torch.equal(draw(one), plain)


# ---------------------------------------------------------------------------------------------- schedulers
SCHEDULERS = ("HeunDiscrete", "EulerAncestralDiscrete", "LCM", "DPMSolverSDE", "PNDM")
MORE = ("DDIM", "DDPM", "KDPM2Discrete", "UniPCMultistep", "TCD")


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE)])
def test_schedulers_of_all_kinds(scheduler: str) -> None:
    one = tiny.build("sdxl")
    if scheduler == "DPMSolverSDE":
        pytest.importorskip("torchsde")
    one.pipe.scheduler = getattr(diffusers, f"{scheduler}Scheduler").from_config(one.pipe.scheduler.config)
    for settings in (EVERY, Forecast(0.2)):
        with tomadiff.apply(one.pipe, forecast=settings):
            first, second = draw(one), draw(one)
            assert torch.isfinite(first).all()
            assert torch.equal(first, second)


# ---------------------------------------------------------------------------------------------- copies and others
def test_copies_and_pickles_go_on() -> None:
    one = tiny.build("flux")
    plain = draw(one)
    tomadiff.apply(one.pipe, 0.5, guard=False, forecast=EVERY)
    image = draw(one)
    twin = copy.deepcopy(one.pipe)
    again = pickle.loads(pickle.dumps(one.model))
    tomadiff.remove(one.pipe)
    assert torch.equal(draw(one), plain)
    other = tiny.Tiny(twin, one.settings, one.steps, one.extra)
    assert torch.equal(draw(other), image)
    one.pipe.transformer = again
    assert torch.equal(draw(one), image)
    tomadiff.remove(twin)
    assert torch.equal(draw(other), plain)


def test_another_pipeline_shares_the_forecast() -> None:
    one = tiny.build("sdxl")
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    other = diffusers.StableDiffusionXLImg2ImgPipeline.from_pipe(one.pipe)
    image = torch.rand(1, 3, 32, 32)
    with counted(one.model) as calls:
        other(image=image, strength=0.5, num_inference_steps=12, output_type="pt", prompt="a fox")
    assert 0 < len(calls) < 6
    assert patch.pattern.computed[0] == 6


def test_an_exception_in_the_middle_leaves_the_next_image_alone() -> None:
    one = tiny.build("sdxl")

    def stop(*_: Any) -> dict[str, Any]:
        raise KeyError("stop")

    with tomadiff.apply(one.pipe, forecast=EVERY) as patch:
        image = draw(one)
        with pytest.raises(KeyError):
            draw(one, callback_on_step_end=lambda pipe, step, *_: stop() if step == 3 else {})
        assert torch.equal(draw(one), image)
        assert not patch._forecasts.parts[0]._forecaster._passes


def test_offloading_hooks_and_lora_on_top() -> None:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module

    one = tiny.build("sdxl")
    plain = draw(one)
    with tomadiff.apply(one.pipe, forecast=EVERY):
        image = draw(one)
        add_hook_to_module(one.model, AlignDevicesHook("cpu"), append=True)
        assert torch.equal(draw(one), image)
        remove_hook_from_module(one.model)
        assert torch.equal(draw(one), image)
    assert torch.equal(draw(one), plain)


# ---------------------------------------------------------------------------------------------- waiting for a device
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [EVERY, Forecast(1.0)], ids=str)
def test_no_forecast_step_reads_from_the_device(family: str, settings: Forecast) -> None:
    one = tiny.build(family)
    with tomadiff.apply(one.pipe, forecast=settings) as patch, counted(one.model) as calls:
        around = patch._forecasts.parts[0]._around
        inner, reads = around.function, list[tuple[bool, int]]()

        def watched(*args: Any) -> Any:
            before = len(calls)
            with CountReads() as count:
                output = inner(*args)
            reads.append((len(calls) > before, count.count))
            return output

        around.function = watched
        draw(one)
    skipped = [count for computed, count in reads if not computed]
    assert skipped
    if settings.is_fixed:
        assert not any(skipped)
    else:  # the first of several in a row reads what the last computed step has left
        assert max(skipped) <= 1
        assert sum(skipped) <= len(patch.pattern.computed)


# ---------------------------------------------------------------------------------------------- compile
def compiled_whole(one: tiny.Tiny, graphs: list[Any]) -> None:
    setattr(one.pipe, one.part, torch.compile(one.model, backend=_counter(graphs), fullgraph=True))


def compiled_in_place(one: tiny.Tiny, graphs: list[Any]) -> None:
    one.model.compile(backend=_counter(graphs), fullgraph=True)


def compiled_by_block(one: tiny.Tiny, graphs: list[Any]) -> None:
    one.model.compile_repeated_blocks(backend=_counter(graphs), fullgraph=True)


def _counter(graphs: list[Any]) -> Callable[..., Any]:
    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return backend


@pytest.mark.parametrize(
    "compiled",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in (compiled_whole, compiled_in_place)), compiled_by_block],
)
def test_compiled_models_need_no_more_graphs(compiled: Callable[..., None]) -> None:
    torch._dynamo.reset()
    one = tiny.build("flux")
    with tomadiff.apply(one.pipe, forecast=EVERY):
        wanted = draw(one)
    graphs: list[Any] = []
    compiled(one, graphs)
    plain = draw(one)
    count = len(graphs)
    assert count
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch:
        torch.testing.assert_close(draw(one), wanted, atol=1e-4, rtol=1e-4)
        assert patch.pattern.computed == (0, 1, 2, 4, 6)
    torch.testing.assert_close(draw(one), plain, atol=0, rtol=0)
    assert len(graphs) == count
    torch._dynamo.reset()


def test_a_model_that_is_compiled_later_is_compiled_inside() -> None:
    torch._dynamo.reset()
    one = tiny.build("flux")
    graphs: list[Any] = []
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch:
        wanted = draw(one)
        compiled_in_place(one, graphs)
        torch.testing.assert_close(draw(one), wanted, atol=1e-4, rtol=1e-4)
        assert patch.pattern.forecast
    assert graphs
    torch._dynamo.reset()


# ---------------------------------------------------------------------------------------------- any denoiser
@pytest.mark.parametrize("name", denoisers.BUILDERS)
def test_models_without_a_family_are_forecast(name: str) -> None:
    pipe, call = denoisers.BUILDERS[name]()
    model = getattr(pipe, "unet", None) or pipe.transformer
    with counted(model) as calls:
        plain = denoisers.generate(pipe, call)
    full, before = len(calls), set(vars(model))
    with tomadiff.apply(pipe, forecast=EVERY) as patch, counted(model) as calls:
        first, second = denoisers.generate(pipe, call), denoisers.generate(pipe, call)
        assert len(calls) == 2 * full * 5 // 8
        assert patch.pattern.computed == (0, 1, 2, 4, 6)
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    assert not torch.equal(first, plain)
    assert torch.equal(denoisers.generate(pipe, call), plain)
    assert set(vars(model)) == before


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_modular_pipelines_are_forecast(family: str) -> None:
    one = tiny.build(family)
    pipe = modular(one)
    plain = generate_by_blocks(pipe, one, num_inference_steps=STEPS)
    with tomadiff.apply(pipe, forecast=EVERY) as patch, counted(one.model) as calls:
        first = generate_by_blocks(pipe, one, num_inference_steps=STEPS)
        assert patch.pattern.computed == (0, 1, 2, 4, 6)
        assert len(calls) % 5 == 0
        assert not patch._forecasts.parts[0]._forecaster._passes
        assert torch.equal(generate_by_blocks(pipe, one, num_inference_steps=STEPS), first)
    assert torch.equal(generate_by_blocks(pipe, one, num_inference_steps=STEPS), plain)
