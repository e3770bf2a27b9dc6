"""The image does not depend on which pipeline object a shared model was patched through, nor on what ran before."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import modular_pipelines
from torch import Tensor, multiprocessing, nn

import tomadiff
from tests import tiny
from tomadiff import Forecast, Schedule, ToMA
from tomadiff.engine.driver import Driver, OneAtATime, number_of
from tomadiff.engine.forecast import MARK
from tomadiff.errors import PatchError
from tomadiff.steps.clock import StepInfo

SDXL = diffusers.StableDiffusionXLPipeline
TO_IMAGE = diffusers.StableDiffusionXLImg2ImgPipeline
INPAINT = diffusers.StableDiffusionXLInpaintPipeline
SETTINGS = {"schedule": Schedule(2, 1, start=0.3), "guard": False}  # every step counts
LARGE = {"height": 32, "width": 32}


def _given() -> Tensor:
    return torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def _mask() -> Tensor:
    return (torch.arange(32 * 32).reshape(1, 1, 32, 32) % 32 < 16).float()


def _steps(scheduler: Any) -> Any:
    return scheduler.from_config(diffusers.EulerDiscreteScheduler(steps_offset=1).config)


WAYS: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # class of the pipeline, its scheduler, how it is called
    "text to image": (SDXL, None, {**LARGE, "num_inference_steps": 5}),
    "image to image": (TO_IMAGE, None, {"image": _given, "strength": 0.6, "num_inference_steps": 8}),
    "inpaint": (INPAINT, None, {**LARGE, "image": _given, "mask_image": _mask, "strength": 0.8}),
    "Heun": (SDXL, diffusers.HeunDiscreteScheduler, {**LARGE, "num_inference_steps": 3}),
    "LCM": (SDXL, diffusers.LCMScheduler, {**LARGE, "num_inference_steps": 4}),
    "DDIM": (SDXL, diffusers.DDIMScheduler, {**LARGE, "num_inference_steps": 6}),
    "PNDM": (SDXL, diffusers.PNDMScheduler, {**LARGE, "num_inference_steps": 4}),
    "DDIM, image to image": (TO_IMAGE, diffusers.DDIMScheduler, {"image": _given, "strength": 0.6}),
    "one step": (SDXL, diffusers.DPMSolverMultistepScheduler, {**LARGE, "num_inference_steps": 1}),
}


def made(way: str, one: tiny.Tiny) -> Any:
    """The pipeline of ``way``, which shares the model of ``one``."""
    kind, scheduler, _ = WAYS[way]
    parts = {} if scheduler is None else {"scheduler": _steps(scheduler)}
    return kind.from_pipe(one.pipe, **parts)


def generate(pipe: Any, way: str, **more: Any) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    call = {name: value() if callable(value) else value for name, value in WAYS[way][2].items()}
    call = {"num_inference_steps": 6, "output_type": "latent", "prompt": "a fox", **call, **more}
    result = pipe(generator=torch.Generator().manual_seed(0), **call).images
    assert isinstance(result, Tensor)
    return result


def apply(target: Any) -> Any:
    return tomadiff.apply(target, ToMA.paper(0.5), **SETTINGS)


@functools.cache
def expected(way: str) -> Tensor:
    """Patched through the pipeline that generates, and nothing else ever ran."""
    pipe = made(way, tiny.build("sdxl"))
    plain = generate(pipe, way)
    pipe = made(way, tiny.build("sdxl"))
    apply(pipe)
    image = generate(pipe, way)
    if way != "one step":
        assert not torch.equal(image, plain)
    return image


# ---------------------------------------------------------------------------------------------- histories
class StopError(Exception):
    """Raised in the middle of an image."""


def _stop(_: Any, step: int, __: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    if step == 1:
        raise StopError
    return inputs


def _interrupt(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    pipe._interrupt = step >= 1
    return inputs


def _the_first_pipeline(one: tiny.Tiny, way: str) -> Any:
    apply(one.pipe)
    return made(way, one)


def _the_bare_model(one: tiny.Tiny, way: str) -> Any:
    apply(one.model)
    return made(way, one)


def _a_pipeline_that_is_gone(one: tiny.Tiny, way: str) -> Any:
    apply(one.pipe)
    pipe = made(way, one)
    del one.pipe
    gc.collect()
    return pipe


def _a_deep_copy(one: tiny.Tiny, way: str) -> Any:
    apply(one.pipe)
    return copy.deepcopy(made(way, one))


def _a_copy_in_the_middle(one: tiny.Tiny, way: str) -> Any:
    patch = apply(one.pipe)
    generate(one.pipe, "text to image")
    twin = copy.deepcopy(one.pipe)
    patch.remove()
    return made(way, tiny.Tiny(twin, {}))


def _interleaved(one: tiny.Tiny, way: str) -> Any:
    pipe, other = made(way, one), made("Heun", one)
    apply(other)
    generate(other, "Heun")
    generate(pipe, way)
    generate(one.pipe, "text to image", num_inference_steps=3)
    return pipe


def _a_loop_left_unfinished(one: tiny.Tiny, way: str) -> Any:
    patch = apply(one.pipe)
    patch.begin(9)
    patch.step(3)
    return made(way, one)


def _an_exception(one: tiny.Tiny, way: str) -> Any:
    apply(one.pipe)
    with pytest.raises(StopError):
        generate(one.pipe, "text to image", callback_on_step_end=_stop)
    return made(way, one)


def _an_interrupt(one: tiny.Tiny, way: str) -> Any:
    apply(one.pipe)
    generate(one.pipe, "text to image", callback_on_step_end=_interrupt)
    return made(way, one)


def _offloading(one: tiny.Tiny, way: str) -> Any:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    apply(one.pipe)
    pipe = made(way, one)
    add_hook_to_module(pipe.unet, AlignDevicesHook("cpu", io_same_device=True))
    return pipe


HISTORIES: list[Callable[[tiny.Tiny, str], Any]] = [
    _the_first_pipeline,
    _the_bare_model,
    _a_pipeline_that_is_gone,
    _a_deep_copy,
    _a_copy_in_the_middle,
    _interleaved,
    _a_loop_left_unfinished,
    _an_exception,
    _an_interrupt,
    _offloading,
]


# Every way after one history, and every history before one of two ways; the slow tests have both.
TWO = ("text to image", "DDIM, image to image")
CASES = [
    *((way, _the_first_pipeline) for way in WAYS),
    *((TWO[number % 2], history) for number, history in enumerate(HISTORIES[1:])),
    *(pytest.param(TWO[number % 2 - 1], one, marks=pytest.mark.slow) for number, one in enumerate(HISTORIES[1:])),
]


@pytest.mark.parametrize(("way", "history"), CASES, ids=lambda part: getattr(part, "__name__", part).strip("_"))
def test_the_image_is_the_drivers(way: str, history: Callable[[tiny.Tiny, str], Any]) -> None:
    pipe = history(tiny.build("sdxl"), way)
    assert torch.equal(generate(pipe, way), expected(way))


def test_stated_steps_hold_for_the_loop_that_states_them() -> None:
    """Even after a pipeline has run in between; a pipeline that states its own steps is believed too."""
    one = tiny.build("sdxl")
    patch = apply(one.pipe)
    seen: list[int] = []
    patch.watch(lambda _, group, __: seen.append(group.context.info.step))

    def say(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        patch.step(step + 3)
        return inputs

    generate(one.pipe, "text to image", callback_on_step_end=say)
    assert set(seen) == {3, 4, 5, 6}  # the first step of the scheduler does not merge
    seen.clear()
    generate(one.pipe, "text to image")
    assert set(seen) == {2, 3, 4}


@pytest.mark.parametrize(("family", "scheduler"), [("sdxl", None), ("sdxl", diffusers.DDIMScheduler), ("flux", None)])
def test_no_timestep_is_read(family: str, scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one from a GPU would wait for it at every step."""
    one = tiny.build(family)
    one.pipe.scheduler = one.pipe.scheduler if scheduler is None else _steps(scheduler)
    patch = tomadiff.apply(one.model, ToMA.paper(0.5), schedule=Schedule(1, 1), guard=False)
    monkeypatch.setattr("tomadiff.steps.clock._largest", None)
    infos: list[StepInfo] = []
    patch.watch(lambda _, group, __: infos.append(group.context.info))
    one.draw()
    assert sorted({(info.step, info.pass_index, info.total) for info in infos}) == [(step, 0, 4) for step in range(4)]
    assert infos[0].times == tuple(one.pipe.scheduler.timesteps.tolist())


# ---------------------------------------------------------------------------------------------- modular pipelines
HOLDS = {"schedule": Schedule(2, 1), "guard": False, "forecast": Forecast(every=2, start=1)}


def modular(one: tiny.Tiny) -> Any:
    blocks = {"unet": "StableDiffusionXLAutoBlocks", "transformer": "FluxAutoBlocks"}[one.part]
    if not hasattr(modular_pipelines, blocks):
        pytest.skip(f"this diffusers has no {blocks}")
    pipe = getattr(modular_pipelines, blocks)().init_pipeline()
    pipe.update_components(**{name: part for name, part in one.pipe.components.items() if part is not None})
    return pipe


def generate_by_blocks(pipe: Any, one: tiny.Tiny, **more: Any) -> Any:
    call = {"prompt": "a fox", "num_inference_steps": 4, "output_type": "pt", "output": "images", **one.settings}
    return pipe(generator=torch.Generator().manual_seed(0), **{**call, **more})


def held(model: nn.Module) -> int:
    """Guidance passes that a patch keeps outputs of."""
    return len(vars(model)[MARK]._forecaster._passes)


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_modular_pipelines_give_back_what_was_held(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny.build(family)
    pipe = modular(one)
    tomadiff.apply(one.model, ToMA.paper(0.5), **HOLDS)
    while_decoding: list[int] = []
    decode = one.pipe.vae.decode

    def look_and_decode(*args: Any, **kwargs: Any) -> Any:
        while_decoding.append(held(one.model))
        return decode(*args, **kwargs)

    monkeypatch.setattr(one.pipe.vae, "decode", look_and_decode)
    first = generate_by_blocks(pipe, one)
    assert while_decoding == [0], "given back before the image is decoded"
    generate_by_blocks(pipe, one, num_inference_steps=3)
    assert torch.equal(generate_by_blocks(pipe, one), first)
    assert held(one.model) == 0


def test_modular_pipelines_give_back_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny.build("sdxl")
    pipe = modular(one)
    tomadiff.apply(pipe, ToMA.paper(0.5), **HOLDS)
    first = generate_by_blocks(pipe, one)
    step, calls = one.pipe.scheduler.step, []

    def fail_late(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise StopError
        return step(*args, **kwargs)

    monkeypatch.setattr(one.pipe.scheduler, "step", fail_late)
    with pytest.raises(StopError):
        generate_by_blocks(pipe, one)
    monkeypatch.undo()
    assert torch.equal(generate_by_blocks(pipe, one), first)
    assert held(one.model) == 0


# ---------------------------------------------------------------------------------------------- threads
class Meeting:
    """Stops a pipeline after its first step until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.leave = threading.Event(), threading.Event()

    def __call__(self, _: Any, step: int, __: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        self.reached.set()
        assert self.leave.wait(60)
        return inputs


@pytest.mark.parametrize("way", ["text to image", "DDIM"])
def test_a_second_thread_is_told_to_wait(way: str) -> None:
    """The image in progress is not touched, and the model is free again as soon as it is done."""
    one = tiny.build("sdxl")
    first, second = made(way, one), made("Heun", one)
    apply(first)
    meeting, images = Meeting(), list[Tensor]()
    thread = threading.Thread(target=lambda: images.append(generate(first, way, callback_on_step_end=meeting)))
    thread.start()
    assert meeting.reached.wait(60)
    with pytest.raises(PatchError, match="another thread"):
        generate(second, "Heun")
    second.maybe_free_model_hooks()  # as applications do after an error
    meeting.leave.set()
    thread.join()
    assert torch.equal(images[0], expected(way))
    assert torch.equal(generate(second, "Heun"), expected("Heun"))


def test_two_calls_at_once_are_refused() -> None:
    """Without a pipeline, too."""
    model = tiny.model("sd15")
    tomadiff.apply(model, 0.5)
    inside, leave = threading.Event(), threading.Event()
    call = {"sample": torch.zeros(1, 4, 16, 16), "timestep": 9, "encoder_hidden_states": torch.zeros(1, 4, tiny.WIDTH)}

    def stay(*_: Any) -> None:
        inside.set()
        assert leave.wait(60)

    handle = model.mid_block.register_forward_hook(stay)
    thread = threading.Thread(target=lambda: model(**call))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(PatchError, match="another thread"):
        model(**call)
    leave.set()
    thread.join()
    handle.remove()
    model(**call)


def test_after_an_exception_the_next_thread_may_begin() -> None:
    one = tiny.build("sdxl")
    apply(one.pipe)
    ready, leave, images = threading.Event(), threading.Event(), list[Tensor]()

    def fail_and_stay() -> None:
        with pytest.raises(StopError):
            generate(one.pipe, "text to image", callback_on_step_end=_stop)
        ready.set()
        leave.wait(60)

    threads = [threading.Thread(target=fail_and_stay)]
    threads[0].start()
    assert ready.wait(60)
    threads.append(threading.Thread(target=lambda: images.append(generate(one.pipe, "text to image"))))
    threads[1].start()
    threads[1].join()
    leave.set()
    threads[0].join()
    assert torch.equal(images[0], expected("text to image"))


def test_a_thread_that_has_gone_on_to_something_else_is_not_at_work() -> None:
    """Frames that are over leave their numbers to others."""
    threads, running, leave = OneAtATime(), threading.Event(), threading.Event()

    def call_and_go_on() -> None:
        here = sys._getframe()
        threads.enter(Driver(frame=(threading.Event.wait.__code__, id(here))))
        running.set()
        leave.wait(60)

    thread = threading.Thread(target=call_and_go_on)
    thread.start()
    assert running.wait(60)
    threads.enter(Driver())
    leave.set()
    thread.join()


def test_no_two_pipelines_have_one_number() -> None:
    class Pipeline: ...

    assert len({number_of(Pipeline()) for _ in range(100)}) == 100
    kept = Pipeline()
    assert number_of(kept) == number_of(kept)
    assert number_of([]) > 0


# ---------------------------------------------------------------------------------------------- pickles
@pytest.mark.parametrize(("family", "protocol"), [("sdxl", 2), ("flux", 5)])
def test_a_pickled_model_arrives_patched(family: str, protocol: int, tmp_path: Path) -> None:
    """The original stays as it was; the copy generates the same image, and comes off on its own."""
    one = tiny.build(family)
    plain = one.draw()
    patch = tomadiff.apply(one.pipe, 0.5, guard=False)
    merged, before = one.draw(), _attributes(one.model)
    torch.save(one.model, tmp_path / "model.pt", pickle_protocol=protocol)
    assert _attributes(one.model) == before
    assert torch.equal(one.draw(), merged)
    original = one.model
    setattr(one.pipe, one.part, torch.load(tmp_path / "model.pt", weights_only=False))
    assert torch.equal(one.draw(), merged)
    patch.remove()
    assert torch.equal(one.draw(), merged), "removing from the original reached the copy"
    tomadiff.remove(one.pipe)
    assert torch.equal(one.draw(), plain)
    assert _attributes(one.model) == _attributes(original)


def _attributes(model: nn.Module) -> dict[str, set[str]]:
    return {name: set(vars(module)) for name, module in model.named_modules()}


def test_a_part_of_a_patched_model_is_pickled_as_it_was() -> None:
    one = tiny.build("sdxl")
    before = pickle.dumps(one.model.mid_block)
    with tomadiff.apply(one.pipe, 0.5):
        one.draw()
        assert pickle.dumps(one.model.mid_block) == before
    assert pickle.dumps(one.model.mid_block) == before


def _generate_elsewhere(_: int, model: nn.Module, file: str) -> None:
    torch.set_num_threads(1)
    one = tiny.build("sdxl")
    one.pipe.unet = model
    torch.save(generate(one.pipe, "text to image"), file)


@pytest.mark.slow
def test_a_spawned_process_merges_too(tmp_path: Path) -> None:
    one = tiny.build("sdxl")
    apply(one.pipe)
    multiprocessing.spawn(_generate_elsewhere, (one.model, str(tmp_path / "image.pt")), nprocs=1)
    elsewhere = torch.load(tmp_path / "image.pt")
    assert torch.allclose(elsewhere, expected("text to image"), atol=1e-4)  # threads may round otherwise
    assert torch.equal(generate(one.pipe, "text to image"), expected("text to image"))
