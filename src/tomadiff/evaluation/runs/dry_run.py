"""What one image costs the denoiser, in FLOPs: counted once for each method, not for each image.

In a dry run the pipeline goes through all of its steps, but its denoiser computes only the first call of every shape
and returns the same output for the others. That tells how often it is called (guidance may take a pass of its own, some
solvers call twice) for the price of a single call. Counting a method then takes one call more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from tomadiff.engine.report import merges_nothing
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.flops import count, count_kinds
from tomadiff.evaluation.runs.generate import Call, arguments_of
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Due, Schedule

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class DryRun:
    """The calls that one unmerged image makes.

    Attributes:
        model: the denoiser.
        inputs: what it was called with, one example for each combination of shapes.
        calls: the shapes of every call, in order.
        steps: of denoising; each has the same number of calls.
    """

    model: Any
    inputs: Mapping[Shapes, Mapping[str, Any]]
    calls: tuple[Shapes, ...]
    steps: int

    def flops(self, variant: Variant) -> float:
        """FLOPs of one image; a multiply-add is two."""
        method = variant.method
        if method is None:
            return float(sum(self._unmerged[shapes] for shapes in self.calls))
        schedule = variant.schedule.completed_by(method.schedule)
        due = schedule.dues(self.steps)
        plain, ratios = _in_plain_torch(method), Schedule(ratio_at_level=schedule.ratio_at_level)
        steps = [self._step(place) for place in range(len(self.calls))]
        calls = zip(self.calls, steps, strict=True)
        return float(
            sum(
                self._kinds(shapes, plain, ratios)[due[step]] for shapes, step in calls if self._computes(variant, step)
            )
        )

    def _computes(self, variant: Variant, step: int) -> bool:
        """Whether a fixed pattern of forecasts computes the step; others are known only when the image is generated."""
        forecast = variant.forecast
        return forecast is None or not forecast.is_fixed or forecast.computes(step, self.steps)

    def _kinds(self, shapes: Shapes, method: Method, ratios: Schedule) -> Mapping[Due, int]:
        """FLOPs by what is due."""
        if merges_nothing(method, ratios):
            return dict.fromkeys(Due, self._unmerged[shapes])
        key = shapes, method, ratios
        if key not in self._counted:
            merged = count_kinds(self.model, self.inputs[shapes], method, ratios)
            self._counted[key] = {**merged, Due.SKIP: self._unmerged[shapes]}
        return self._counted[key]

    @cached_property
    def _counted(self) -> dict[tuple[Shapes, Method, Schedule], Mapping[Due, int]]:
        return {}

    @cached_property
    def _unmerged(self) -> dict[Shapes, int]:
        return {shapes: count(self.model, inputs) for shapes, inputs in self.inputs.items()}

    def _step(self, place: int) -> int:
        return place * self.steps // len(self.calls)


def _in_plain_torch(method: Method) -> Method:
    """Kernels of our own do the same, but the counter cannot look into them."""
    has = any(field.name == "kernels" for field in fields(method))
    return replace(method, kernels="torch") if has else method  # type: ignore[call-arg]


def meter(pipe: Any, prompt: Prompt, seed: int, call: Call) -> Callable[[Variant], float]:
    """FLOPs of one image by variant; nothing is done before the first is asked for, and nothing twice.

    Args:
        pipe: the pipeline, unmerged.
        prompt: what to run with; the same for all processes of a run, for prompts may differ in length.
        seed: of its noise.
        call: see :func:`tomadiff.evaluation.runs.generate.call_of`.
    """
    counted = cache(lambda: dry_run(pipe, prompt, seed, call))
    return cache(lambda variant: counted().flops(variant))


def dry_run(pipe: Any, prompt: Prompt, seed: int, call: Call) -> DryRun:
    """Go through the steps of one unmerged image."""
    model = models.denoiser(pipe)
    with _computing_once(model) as (inputs, calls):
        pipe(**{**arguments_of(pipe, [prompt], [seed], call), "output_type": "latent"})
    steps = call.get("num_inference_steps", len(calls))
    return DryRun(model, inputs, tuple(calls), steps)


@contextmanager
def _computing_once(model: Any) -> Iterator[tuple[dict[Shapes, dict[str, Any]], list[Shapes]]]:
    """While it lasts the model computes the first call of every shape only."""
    forward, own = model.forward, model.__dict__.get("forward")
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    inputs: dict[Shapes, dict[str, Any]] = {}
    outputs: dict[Shapes, Any] = {}
    calls: list[Shapes] = []

    def compute_once(*given: Any, **named: Any) -> Any:
        shapes = _shapes((given, named))
        calls.append(shapes)
        if shapes not in inputs:
            inputs[shapes] = {**dict(zip(names, given, strict=False)), **named}
            outputs[shapes] = forward(*given, **named)
        return outputs[shapes]

    model.forward = compute_once
    try:
        yield inputs, calls
    finally:
        del model.forward
        if own is not None:
            model.forward = own


def _shapes(given: Any) -> Shapes:
    return tuple(tuple(leaf.shape) for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
