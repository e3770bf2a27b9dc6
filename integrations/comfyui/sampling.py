"""One run of a sampler: ComfyUI's wrappers on the outside, :class:`tomadiff.engine.hosted.HostedRun` on the inside.

The wrappers of a run are put into the options of that run alone. So nothing is left in the model, the node or this
module when it ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import comfy.ldm.modules.attention
import torch
from comfy.model_patcher import create_model_options_clone
from comfy.patcher_extension import WrappersMP, add_wrapper_with_key

from tomadiff.cost.policy import CostPolicy
from tomadiff.engine.hosted import HostedModel, HostedRun
from tomadiff.families import Family
from tomadiff.methods import Method, ToMA
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.recommend import Recommended

from .families import find_family, is_unwrapped
from .samplers import step_sizes

KEY = "tomadiff"
FEW_STEPS = 8  # up to here merging was nearer than forecasts at equal FLOPs, from 20 steps on the other way round
_AUTO_RATIO = 0.4  # of the presets that ship with tomadiff


@dataclass
class Acceleration:
    """What one model is given, and what the last run with it did.

    Attributes:
        method: how tokens merge, if they do.
        forecast: which steps are forecast, if any.
        guard: whether tokens stay unmerged where that is expected to be faster.
        auto: whether the number of steps decides between the two.
        summary: of the last run.
    """

    method: Method | None = None
    forecast: Forecast | None = None
    guard: bool = True
    auto: bool = False
    summary: str = ""

    def put_on(self, patcher: Any) -> None:
        """Accelerate what ``patcher`` samples; an earlier acceleration goes. Clones have accelerations of their own."""
        options = patcher.model_options.setdefault("transformer_options", {})
        for wrappers in options.get("wrappers", {}).values():
            wrappers.pop(KEY, None)
        add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, self.sample, patcher.model_options, is_model_options=True)
        options[KEY] = self

    @staticmethod
    def of(patcher: Any) -> Acceleration | None:
        """What accelerates a model, if anything does."""
        found: Acceleration | None = patcher.model_options.get("transformer_options", {}).get(KEY)
        return found

    def sample(
        self, executor: Any, noise: Any, latent_image: Any, sampler: Any, sigmas: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """In place of a run of a sampler."""
        with self._running(executor.class_obj, sampler, sigmas):
            return executor(noise, latent_image, sampler, sigmas, *args, **kwargs)

    @contextmanager
    def _running(self, guider: Any, sampler: Any, sigmas: Any) -> Iterator[None]:
        before = guider.model_options
        options = guider.model_options = create_model_options_clone(before)
        sampling = Sampling(guider, sampler, sigmas, *self.settings_for(len(sigmas) - 1), guard=self.guard)
        wrappers: list[tuple[str, Callable[..., Any]]] = [
            (WrappersMP.CALC_COND_BATCH, sampling.evaluate),
            (WrappersMP.APPLY_MODEL, sampling.call_holder),
            (WrappersMP.DIFFUSION_MODEL, sampling.call),
        ]
        for place, wrapper in wrappers:
            add_wrapper_with_key(place, KEY, wrapper, options, is_model_options=True)
        try:
            yield
        finally:
            guider.model_options = before
            self.summary = sampling.end()

    def settings_for(self, steps: int) -> tuple[Method | None, Forecast | None]:
        """What merges and what is forecast in a run of so many steps."""
        if not self.auto:
            return self.method, self.forecast
        return (ToMA(_AUTO_RATIO), None) if steps <= FEW_STEPS else (None, Recommended())


class Sampling:
    """The wrappers of one run."""

    def __init__(
        self,
        guider: Any,
        sampler: Any,
        sigmas: torch.Tensor,
        method: Method | None,
        forecast: Forecast | None,
        guard: bool,
    ) -> None:
        patcher = guider.model_patcher
        levels = sigmas[:-1]
        times = patcher.get_model_object("model_sampling").timestep(levels).tolist()
        sizes = None if forecast is None else step_sizes(sampler, sigmas, patcher)
        self._run = HostedRun(levels.tolist(), times, forecast, sizes, getattr(guider, "cfg", 1.0))
        self._method, self._guard, self._forecasts = method, guard, forecast is not None
        self._kind = type(patcher.model.diffusion_model).__name__

    def end(self) -> str:
        """Leave the model as it was; what was done, as text."""
        self._run.end()
        text = str(self._run.report(self._kind))
        if self._method is not None and self._run.merged is None:  # the node lets only "auto" come here
            text = f"{text}\nnothing is merged: tokens cannot merge in {self._kind}".strip()
        return text

    # ------------------------------------------------------------------------------------------ forecasts
    def evaluate(
        self, executor: Any, model: Any, conds: list[Any], x: torch.Tensor, sigma: torch.Tensor, options: dict[str, Any]
    ) -> Any:
        """In place of all guidance passes at one noise level: computed, or forecast without calling anything."""
        level = float(sigma.flatten()[0])
        self._run.at(level)
        if not self._forecasts:
            return executor(model, conds, x, sigma, options)
        affine = Affine(model.model_sampling, sigma, x)
        computed: list[Any] = []

        def compute() -> tuple[torch.Tensor, ...]:
            results = executor(model, conds, x, sigma, options)
            outputs = tuple(affine.output(one) for one, cond in zip(results, conds, strict=True) if cond is not None)
            computed.extend((outputs, results))
            return outputs

        form = x.shape, x.dtype, x.device, *(_active(cond, level) for cond in conds)
        outputs = self._run.outputs(_names(conds, options), form, compute)
        if computed and outputs is computed[0]:  # neither forecast nor corrected, so no bit changes
            return computed[1]
        given = iter(outputs)
        return [torch.zeros_like(x) if cond is None else affine.denoised(next(given)) for cond in conds]

    # ------------------------------------------------------------------------------------------ merging
    def call(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of a call of the diffusion model."""
        if is_unwrapped(executor.class_obj):
            return executor(*args, **kwargs)
        with self._merging(executor.class_obj, args, kwargs):
            return executor(*args, **kwargs)

    def call_holder(
        self,
        executor: Any,
        x: torch.Tensor,
        t: torch.Tensor,
        concat: Any = None,
        text: Any = None,
        control: Any = None,
        options: Any = None,
        **kwargs: Any,
    ) -> Any:
        """In place of a call of what holds the diffusion model, for models that nodes cannot go around themselves."""
        holder, given = executor.class_obj, (x, t, concat, text, control, options or {})
        if not is_unwrapped(holder.diffusion_model):
            return executor(*given, **kwargs)
        image = x.to(holder.manual_cast_dtype or holder.get_dtype())
        named = {"context": text, "control": control, "transformer_options": options or {}, **kwargs}
        with self._merging(holder.diffusion_model, (image, t), named):
            return executor(*given, **kwargs)

    @contextmanager
    def _merging(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Merge in the call of ``model`` with these arguments, which is made inside."""
        if self._method is not None and self._run.merged is None:
            family = find_family(model)
            if family is not None:
                self._run.merge(self._hosted(model, family, self._method, args, kwargs))
        with self._run.merging(model, args, kwargs):
            yield

    def _hosted(self, model: Any, family: Family, method: Method, args: Any, kwargs: Any) -> HostedModel:
        policy = CostPolicy(guarded=True) if self._guard else None
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, dict)]
        replaced = any("optimized_attention_override" in one for one in given)
        backend = "" if replaced else comfy.ldm.modules.attention.optimized_attention.__name__
        return HostedModel(model, family, method, method.schedule, policy, backend)


class Affine:
    """What ComfyUI calls the model's result is its denoised image, affine in what the model gives at a noise level.

    Forecasts are of what the model gives, as with any other host, whatever a model predicts.
    """

    def __init__(self, sampling: Any, sigma: torch.Tensor, x: torch.Tensor) -> None:
        one = torch.ones([len(sigma), *[1] * (x.dim() - 1)], dtype=torch.float32, device=x.device)
        self._slope: torch.Tensor = sampling.calculate_denoised(sigma, one, torch.zeros_like(one))
        self._offset: torch.Tensor = sampling.calculate_denoised(sigma, torch.zeros_like(x), x)

    def output(self, denoised: torch.Tensor) -> torch.Tensor:
        """What the model gave."""
        return (denoised - self._offset) / self._slope

    def denoised(self, output: torch.Tensor) -> torch.Tensor:
        """What ComfyUI makes of it."""
        return self._offset + output * self._slope


def _names(conds: list[Any], options: dict[str, Any]) -> Hashable:
    """Which conditions are asked for, and for which part of a long video."""
    window = options.get("transformer_options", {}).get("context_window")
    part = tuple(getattr(window, "index_list", ()))
    return part, *(None if cond is None else tuple(one.get("uuid") for one in cond) for cond in conds)


def _active(cond: list[dict[str, Any]] | None, level: float) -> Hashable:
    """Which conditions of a list count at a noise level, and which of their ControlNets."""
    if cond is None:
        return None
    return tuple((_is_between(one, level), _controls(one, level)) for one in cond)


def _is_between(cond: dict[str, Any], level: float) -> bool:
    return bool(cond.get("timestep_end", -1.0) <= level <= cond.get("timestep_start", float("inf")))


def _controls(cond: dict[str, Any], level: float) -> tuple[bool, ...]:
    found, control = [], cond.get("control")
    while control is not None:
        start, end = getattr(control, "timestep_range", None) or (float("inf"), -1.0)
        found.append(end <= level <= start)
        control = getattr(control, "previous_controlnet", None)
    return tuple(found)
