"""What the guide promises, checked on one case."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import torch
from torch import Tensor, nn

import tomadiff
from tests.fuzz import models
from tests.fuzz.cases import SETTINGS, Case
from tests.fuzz.models import settings_of, sharing
from tests.fuzz.tools import put_on
from tests.newer_pipelines import latents_of
from tests.tiny import Tiny
from tomadiff import Forecast, Patch, Schedule, TomaError
from tomadiff.errors import SettingError
from tomadiff.methods.registry import entry

ONE_THREAD = ("tokenizer", "guider")  # parts of a pipeline that cannot serve two threads, and schedulers


class BrokenError(Exception):
    """Raised on purpose in the middle of a run."""


def check(case: Case) -> None:
    """Run ``case``; an AssertionError names the promise that was broken, and what else is raised should not be."""
    built = models.build(case)
    plain, before = generate(built), traces(built.model)
    off = put_on(case.tool, built) if case.tool_first else None
    try:
        patch = apply(case, built)
    except TomaError:  # a method that does not know the family, or has nothing to merge there
        patch = None
    if off is None:
        off = put_on(case.tool, built)
    if patch is not None:
        _check_patched(case, built, patch, plain)
        tomadiff.remove(built.pipe)
    off()
    assert torch.equal(generate(built), plain), "removal does not restore the image"
    assert traces(built.model) == before or case.tool != "none", "removal leaves something behind"


def _check_patched(case: Case, built: Tiny, patch: Patch, plain: Tensor) -> None:
    try:
        merged = generate(built)
    except SettingError:  # a budget that is out of reach
        assert case.setting == "budget", "an error at the first call"
        return
    assert merged.shape == plain.shape, "another shape"
    assert merged.isfinite().all(), "not finite"
    assert str(patch.summary()), "no summary"
    others = (case.schedule == "per level", case.forecast != "none", case.setting == "budget")
    if patch.method.ratio == 0 and not any(others) and case.tool == "none":
        assert torch.equal(merged, plain), "ratio 0 is not bit-exact"
    assert torch.equal(generate(built), merged), "the second image differs"
    EVENTS[case.event](case, built, patch, merged)
    assert torch.equal(generate(built), merged), f"the image after {case.event!r} differs"


# ---------------------------------------------------------------------------------------------- generating
def generate(built: Tiny, pipe: Any = None, seed: int = 0, **settings: Any) -> Tensor:
    """The latents of one call. What a patch does must not reach the random numbers of others."""
    torch.manual_seed(1)
    call = {**built.settings, **settings}
    latents = latents_of((pipe or built.pipe)(generator=torch.Generator().manual_seed(seed), **call))
    drawn = torch.rand(1).item()
    torch.manual_seed(1)
    assert drawn == torch.rand(1).item(), "the global random numbers were used"
    return latents


def apply(case: Case, built: Tiny) -> Patch:
    """Patch the pipeline as the case says."""
    return _apply(case, built.pipe)


def _apply(case: Case, target: Any) -> Patch:
    known, forecast = entry(case.method), _forecast(case)
    if case.forecast == "alone":
        return tomadiff.apply(target, forecast=forecast)
    schedule = _schedule(case) or known.schedule
    settings: Any = {"schedule": schedule, "guard": case.guard, "forecast": forecast, **SETTINGS[case.setting]}
    return tomadiff.apply(target, known.make(case.ratio), **settings)


def _forecast(case: Case) -> Forecast | None:
    """Few steps have nothing to spare, so the tolerance is large."""
    return {
        "none": None,
        "every 2": Forecast(every=2, start=1),
        "tolerance": Forecast(0.5),
        "alone": Forecast(every=2, start=1),
    }[case.forecast]


def _schedule(case: Case) -> Schedule | None:
    return {
        "default": None,
        "every step": Schedule(1, 1),
        "every 2 and 1": Schedule(2, 1),
        "from half": Schedule(start=0.5),
        "last steps": Schedule(start=2),
        "per level": Schedule(ratio_at_level={0: 0.25}),
    }[case.schedule]


def traces(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Everything that hangs on the modules of a model beside its class: what a patch must take away again."""
    own = {}
    for name, module in model.named_modules():
        hooks = (len(module._forward_hooks), len(module._forward_pre_hooks))
        own[name] = (*sorted(key for key in vars(module) if key != "_compiled_call_impl"), str(hooks))
    return own


# ---------------------------------------------------------------------------------------------- what happens between
def _nothing(*_: Any) -> None:
    pass


def _another_image(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    other = replace(case, height=48, width=64, images=1, steps=case.steps + 1)
    generate(built, seed=7, **settings_of(other))


def _exception(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """The model raises in the middle of an image."""
    calls = iter(range(1000))

    def broken(*_: Any) -> None:
        if next(calls) >= case.steps // 2:
            raise BrokenError

    place = next(module for name, module in built.model.named_modules() if isinstance(module, nn.ModuleList))[-1]
    handle = next(module for module in place.modules() if isinstance(module, nn.Linear)).register_forward_hook(broken)
    try:
        generate(built, seed=7)
    except BrokenError:
        pass
    finally:
        handle.remove()


def _interrupt(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """A callback stops the run early, as UIs do."""

    def stop(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= case.steps // 2
        return tensors

    generate(built, seed=7, callback_on_step_end=stop)
    built.pipe._interrupt = False


def _other_settings(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    if case.forecast != "alone":  # there is no ratio then
        before = patch.method.ratio
        patch.set(ratio=0.625)
        generate(built)
        patch.set(**({"flops": 0.9} if case.setting == "budget" else {"ratio": before}))


def _unfinished_loop(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    patch.begin(9)
    patch.step(3)


def _copy(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    twin = copy.deepcopy(built.pipe)
    assert torch.equal(generate(built, twin), merged), "a copy gives another image"


def _pickle(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """A model that went through a file merges as before, or is as if it had never been patched."""
    file = io.BytesIO()
    torch.save(built.model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    twin = sharing(built, **{built.part: loaded})
    image = generate(built, twin)
    tomadiff.remove(loaded)
    assert torch.equal(image, merged) or torch.equal(image, generate(built, twin)), "a loaded model gives another image"


def _second_pipeline(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """Another pipeline object with the same components."""
    assert torch.equal(generate(built, sharing(built)), merged), "another pipeline gives another image"


def _own_scheduler(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """Another pipeline on the same model, with a scheduler of its own and another number of steps."""
    scheduler = built.pipe.scheduler
    other = sharing(built, scheduler=type(scheduler).from_config(scheduler.config))
    assert torch.equal(generate(built, other), merged), "a pipeline with its own scheduler gives another image"
    generate(built, other, num_inference_steps=case.steps + 2)


def _later_pipeline(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """The model is patched through another pipeline, or alone: the image is the same."""
    other = sharing(built)
    for target in (built.model, other):
        _apply(case, target)
        assert torch.equal(generate(built), merged), "patched through another object, it gives another image"


def _threads(case: Case, built: Tiny, patch: Patch, merged: Tensor) -> None:
    """Two pipelines with one model at once: each gives its image, or says that it cannot."""
    scheduler = built.pipe.scheduler
    parts = {name: copy.deepcopy(part) for name, part in built.pipe.components.items() if name.startswith(ONE_THREAD)}
    parts["scheduler"] = type(scheduler).from_config(scheduler.config)
    other = sharing(built, **parts)
    together = Barrier(2)

    def run(pipe: Any) -> Tensor | None:
        together.wait()
        try:
            call = {**built.settings, "generator": torch.Generator().manual_seed(0)}
            return latents_of(pipe(**call))
        except TomaError:
            return None

    with ThreadPoolExecutor(2) as pool:
        images = list(pool.map(run, (built.pipe, other)))
    for image in images:
        assert image is None or torch.equal(image, merged), "an image is wrong when two threads share the model"


EVENTS: dict[str, Callable[[Case, Tiny, Patch, Tensor], None]] = {
    "nothing": _nothing,
    "another image": _another_image,
    "exception": _exception,
    "interrupt": _interrupt,
    "other settings and back": _other_settings,
    "unfinished loop": _unfinished_loop,
    "copy": _copy,
    "pickle": _pickle,
    "second pipeline": _second_pipeline,
    "own scheduler": _own_scheduler,
    "later pipeline": _later_pipeline,
    "threads": _threads,
}
