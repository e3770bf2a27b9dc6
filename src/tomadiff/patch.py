"""``apply()`` puts merging on a model, and the :class:`Patch` it returns reports on it and takes it off again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import astuple, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from torch import Tensor, nn

from tomadiff.engine.controlnet import MARK as CONTROL
from tomadiff.engine.controlnet import ForecastControl
from tomadiff.engine.forecast import MARK as FORECAST
from tomadiff.engine.forecast import ForecastModel, require_no_cache
from tomadiff.engine.group import PlanGroup
from tomadiff.engine.hooks import unwrap
from tomadiff.engine.model import MARK, PatchedModel, merges_nothing
from tomadiff.engine.report import Report
from tomadiff.errors import PatchError, SettingError, UnsupportedModelError
from tomadiff.families.base import Family
from tomadiff.families.registry import describe_supported, family_of, find_family, supported
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Method
from tomadiff.methods.toma import ToMA
from tomadiff.presets import Preset
from tomadiff.steps.forecast import Forecast, Pattern
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.settings import Ratio, Rule, checked

if TYPE_CHECKING:  # costs are loaded when they are asked for
    from tomadiff.cost.budget import Budget, Choice
    from tomadiff.cost.policy import CostPolicy

logger = logging.getLogger("tomadiff")

GUARD = True  # whether patches are guarded unless told otherwise

AnyMethod = Annotated[Method | float, Rule("give a ratio such as 0.5, or a method such as ToMA(ratio=0.5)")]
"""A method, or the ratio of the default one."""

AnyForecast = Annotated[
    Forecast | float, Rule("give a tolerance such as 0.05, or a Forecast such as Forecast(every=2)")
]
"""A forecast, or its tolerance."""

_DENOISERS = ("unet", "transformer", "transformer_2")  # components of a pipeline that denoise


@checked
def apply(
    target: Any,
    method: AnyMethod | None = None,
    *,
    schedule: Schedule | None = None,
    ratio: Ratio | None = None,
    preset: str | Path | Preset | None = None,
    flops: float | None = None,
    speedup: float | None = None,
    guard: bool | None = None,
    forecast: AnyForecast | None = None,
    **settings: Any,
) -> Patch:
    """Merge tokens in a pipeline or a model, forecast some of its denoising steps, or both.

    Args:
        target: a diffusers pipeline, or its UNet or transformer (compiled or not).
        method: how to merge; a number is the ratio of :class:`~tomadiff.ToMA` with the family's defaults.
        schedule: how long plans are kept, instead of the method's own (ToMA: one step; ToMA.paper: destinations 10
            steps, weights 5).
        ratio: share of tokens removed, a shorter way to write ``ToMA(ratio)``.
        preset: a method with its schedule by name, file or object, instead of ``method``; see :mod:`tomadiff.presets`.
        flops: instead of a ratio, the share of the unmerged FLOPs that a whole image may cost, planning
            included; the ratio is chosen at the first call of each size.
        speedup: the same for time, as predicted for this kind of machine: how many times as fast.
        guard: leave tokens unmerged where that would be faster, as estimated from shapes and the kind of device at the
            first call of each size (the default); ``False`` merges wherever the method says.
        forecast: a tolerance or a :class:`~tomadiff.Forecast`; alone, it forecasts steps of any denoiser and merges
            nothing. It is ours, not the paper's.
        settings: any other setting of the method, such as ``levels=(0,)``.

    A model that is patched already is patched anew: the earlier patch comes off first.
    """
    budget, own = _budget(flops, speedup, method, ratio), None
    steps = Forecast.of(forecast)
    if steps is not None and not settings and all(one is None for one in (method, schedule, ratio, preset, budget)):
        return Patch(target, None, None, False, forecast=steps)
    if preset is not None:
        method, own, stored = _of_preset(preset, method)
        steps = stored if steps is None else steps
    chosen = _method(method, ratio, settings)
    own = own or chosen.schedule
    schedule = _left_to(budget, own) if schedule in (None, own) else schedule
    return Patch(target, chosen, schedule, GUARD if guard is None else guard, budget, steps)


def remove(target: Any) -> None:
    """Take whatever patch there is off a pipeline or model (or a copy of one)."""
    for _, model in _denoisers(target):
        _take_off(model, FORECAST)
        _take_off(model, MARK)
    for control in _controls(target):
        _take_off(control, CONTROL)


def _take_off(model: nn.Module, mark: str) -> None:
    old = unwrap(model).__dict__.get(mark)
    if old is not None:
        old.take_off()


def _budget(
    flops: float | None, speedup: float | None, method: Method | float | None, ratio: float | None
) -> Budget | None:
    """The budget that was given, if one was; a method beside it says everything but the ratio."""
    budget = None
    if flops is not None or speedup is not None:
        from tomadiff.cost.budget import Budget

        budget = Budget(flops, speedup)
    given = ratio if method is None or isinstance(method, Method) else method
    if budget is not None and given is not None:
        raise SettingError(
            f"Both {budget} and the ratio {given} were given; the budget chooses the ratio, so give one."
        )
    return budget


def _policy(guard: bool, budget: Budget | None) -> CostPolicy | None:
    """What a patched model asks before it merges, if anything."""
    if not guard and budget is None:
        return None
    from tomadiff.cost.policy import CostPolicy

    return CostPolicy(guard, budget)


def _left_to(budget: Budget | None, schedule: Schedule) -> Schedule:
    """A schedule that comes with a method or preset; where merging begins is a budget's to choose, if there is one."""
    return schedule if budget is None else replace(schedule, start=0)


def _of_preset(preset: str | Path | Preset, method: Method | float | None) -> tuple[Method, Schedule, Forecast | None]:
    if method is not None:
        raise SettingError(f"Both a preset and method={method!r} were given; give one. ratio=… changes a preset's own.")
    loaded = preset if isinstance(preset, Preset) else Preset.load(preset)
    return loaded.method, loaded.schedule, loaded.forecast


def _method(method: Method | float | None, ratio: float | None, settings: dict[str, Any]) -> Method:
    if isinstance(method, int | float):
        if ratio is not None:
            raise SettingError(f"Two ratios were given, {method} and {ratio}; give one.")
        method, ratio = None, method
    changes = settings if ratio is None else {"ratio": ratio, **settings}
    return changed(method or ToMA(), changes)


def changed(method: Method, changes: dict[str, Any]) -> Method:
    """``method`` with other settings; an unknown name raises with the known ones."""
    known = [field.name for field in fields(method)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise SettingError(f"{type(method).__name__} has no setting {unknown[0]!r}; it has {', '.join(known)}.")
    return replace(method, **changes)


def _models(target: Any) -> list[tuple[str, nn.Module]]:
    """The denoisers that tokens merge in: those of a known family, if any is."""
    models = _denoisers(target)
    return [(name, model) for name, model in models if find_family(unwrap(model)) is not None] or models


def _denoisers(target: Any) -> list[tuple[str, nn.Module]]:
    """The denoisers of a pipeline by component name; a bare model alone."""
    if isinstance(target, nn.Module):
        return [("model", target)]
    found = [(name, getattr(target, name, None)) for name in _DENOISERS]
    models = [(name, model) for name, model in found if isinstance(model, nn.Module)]
    if not models:
        raise UnsupportedModelError(
            f"{type(target).__name__} is neither a model nor a pipeline with a UNet or transformer. "
            f"{describe_supported()}"
        )
    return models


def _controls(target: Any) -> list[nn.Module]:
    """The ControlNet of a pipeline, if it has one; several come as one model."""
    control = None if isinstance(target, nn.Module) else getattr(target, "controlnet", None)
    return [control] if isinstance(control, nn.Module) else []


def _require_match(method: Method, family: Family) -> None:
    if method.families is not None and family.name not in method.families:
        titles = ", ".join(known.title for known in supported() if known.name in method.families)
        raise UnsupportedModelError(f"{type(method).__name__} does not work on {family.title}; it works on {titles}.")


class Patch:
    """Merging and forecasts on a pipeline or model: a handle to report on them, change them, and take them off.

    Also a context manager: ``with tomadiff.apply(pipe, 0.5): …`` takes it off at the end.
    """

    def __init__(
        self,
        target: Any,
        method: Method | None,
        schedule: Schedule | None,
        guard: bool,
        budget: Budget | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        self.method = ToMA(0.0) if method is None else method
        self.schedule = (schedule or self.method.schedule).completed_by(self.method.schedule)
        self.guard, self.budget, self.forecast = guard, budget, forecast
        if budget is not None:
            budget.require_free(self.method, self.schedule)
        self._denoisers, models = _denoisers(target), [] if method is None else _models(target)
        self._control_models, self._controls = _controls(target), list[ForecastControl]()
        for _, model in models:  # all of them before any is touched
            _require_match(self.method, family_of(unwrap(model)))
        self._policies = {name: _policy(guard, budget) for name, _ in models}
        self._models = [
            PatchedModel(name, model, self.method, self.schedule, self._policies[name]) for name, model in models
        ]
        self._forecasts: list[ForecastModel] = []
        try:
            self._put_on()
        except BaseException:  # all or none
            self.remove()
            raise
        self._warn_if_idle()

    def _put_on(self) -> None:
        """Merging first: forecasts go around it. What an earlier patch has put on goes."""
        if self.forecast is not None:
            for _, model in self._denoisers:
                require_no_cache(unwrap(model))
        for patched in self._models:
            patched.put_on()
        for _, model in self._denoisers:
            _take_off(model, FORECAST)
            if not self._models:
                _take_off(model, MARK)
        for control in self._control_models:
            _take_off(control, CONTROL)
        if self.forecast is not None:
            self._forecast(self.forecast)

    def _forecast(self, settings: Forecast) -> None:
        """Put forecasts on, or change those that are."""
        if not self._forecasts:
            self._forecasts = [ForecastModel(name, model, settings) for name, model in self._denoisers]
            for forecast in self._forecasts:
                forecast.put_on()
            if len(self._forecasts) == 1:  # else it is not known whose steps the ControlNet's are
                self._controls = [ForecastControl(model, self._forecasts[0]) for model in self._control_models]
            for control in self._controls:
                control.put_on()
        for forecast in self._forecasts:
            forecast.change(settings)
        self.forecast = settings

    def _warn_if_idle(self) -> None:
        if self._models and self.budget is None and merges_nothing(self.method, self.schedule):
            logger.warning("ratio=0 merges nothing: the model runs as if it were not patched.")
        elif not self._models and (self.forecast is None or not self.forecast.skips):
            logger.warning("forecast=0 forecasts nothing: the model runs as if it were not patched.")

    @property
    def active(self) -> bool:
        """Whether the patch is on."""
        return any(one.is_on for one in self._parts)

    @property
    def _parts(self) -> list[PatchedModel | ForecastModel]:
        """The outer ones first."""
        return [*self._forecasts, *self._models]

    def remove(self) -> None:
        """Restore the model exactly; calling it again does nothing."""
        for one in self._parts:
            one.take_off()
        for control in self._controls:
            control.take_off()

    @checked
    def set(
        self,
        *,
        schedule: Schedule | None = None,
        guard: bool | None = None,
        flops: float | None = None,
        speedup: float | None = None,
        forecast: AnyForecast | None = None,
        **settings: Any,
    ) -> None:
        """Change settings of the method, the schedule, the budget, the guard or the forecast without a new patch.

        ``patch.set(ratio=0.25)``, ``patch.set(flops=0.6)``; of ratio and budget, whichever was set last holds.
        ``patch.set(forecast=0)`` computes every step.
        """
        if not self.active:
            raise PatchError("This patch was removed; call tomadiff.apply again.")
        if settings or any(one is not None for one in (schedule, guard, flops, speedup)):
            self._set_merging(schedule, guard, flops, speedup, settings)
        steps = Forecast.of(forecast)
        if steps is not None:
            self._forecast(steps)
        self._warn_if_idle()

    def _set_merging(
        self,
        schedule: Schedule | None,
        guard: bool | None,
        flops: float | None,
        speedup: float | None,
        settings: dict[str, Any],
    ) -> None:
        if not self._models:
            raise PatchError("This patch merges nothing; call tomadiff.apply again, with a ratio and a forecast.")
        budget = _budget(flops, speedup, None, settings.get("ratio"))
        if budget is None and "ratio" not in settings:
            budget = self.budget
        method = changed(self.method, settings)
        schedule = (schedule or self._schedule_for(method, budget)).completed_by(method.schedule)
        guard = self.guard if guard is None else guard
        if budget is not None:
            budget.require_free(method, schedule)
        for patched in self._models:
            if patched.is_on:
                policy = _policy(guard, budget)
                patched.change(method, schedule, policy)
                self._policies[patched.name] = policy
        self.method, self.schedule, self.guard, self.budget = method, schedule, guard, budget

    def _schedule_for(self, method: Method, budget: Budget | None) -> Schedule:
        """The schedule there is; one that is the method's own becomes that of the new method."""
        own = self.method.schedule
        return _left_to(budget, method.schedule) if self.schedule in (own, replace(own, start=0)) else self.schedule

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen last to meet the budget, by component; empty without one and before the first call."""
        policies = [(name, policy) for name, policy in self._policies.items() if policy is not None]
        return {name: policy.choice for name, policy in policies if policy.choice is not None}

    def begin(self, steps: int | None = None) -> None:
        """Say that a new image starts, and how many steps it takes: for loops of one's own.

        It holds until the next ``begin``, or until a pipeline drives the model, which knows its own steps.
        """
        for one in self._parts:
            one.begin(steps)

    def step(self, step: int) -> None:
        """Say which step the next calls belong to: for loops of one's own; it holds as long as ``begin`` does."""
        for one in self._parts:
            one.state(step)

    def report(self) -> Report:
        """What was merged and forecast so far, as data; with a budget, what was chosen last."""
        forecasts = tuple(one.report() for one in self._forecasts)
        if not self._models:
            return Report("", "", (), forecasts)
        first = self._models[0]
        return Report(
            str(first.settled), str(first.schedule), tuple(patched.report() for patched in self._models), forecasts
        )

    def plans(self) -> dict[str, Plan]:
        """The plan last used by each group, by name (``"level 0"``); empty before the first call and after removal."""
        groups = [group for patched in self._models for group in patched.groups]
        return {group.name: group.last for group in groups if group.last is not None}

    def watch(self, function: Callable[[str, PlanGroup, Tensor], None]) -> None:
        """Call ``function(name, group, tokens)`` whenever a call of the model asks a group for its plan.

        ``group.last`` is the plan in use and ``group.context.info`` the step; ``tokens`` ``(B, N, C)`` are what it
        would be renewed from. Lasts until the patch is changed or removed.
        """
        for patched in self._models:
            for group in patched.groups:
                group.watcher = partial(function, group.name)

    def summary(self) -> str:
        """What was merged and forecast so far, as text."""
        return str(self.report())

    @property
    def pattern(self) -> Pattern:
        """Which steps of the last image were computed; of a pipeline with two denoisers, by both.

        ``Forecast(steps=patch.pattern.computed)`` replays it.
        """
        patterns = [one.pattern for one in self._forecasts]
        return Pattern(*(tuple(sorted(chain(*parts))) for parts in zip(*map(astuple, patterns), strict=True)))

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        where = ", ".join(f"{patched.name} ({patched.family.title})" for patched in self._models)
        what = [repr(self.method)] if self._models else []
        what += [repr(self.forecast)] if self.forecast is not None else []
        where = where or ", ".join(one.name for one in self._forecasts)
        return f"Patch({'on' if self.active else 'removed from'} {where}: {', '.join(what)})"
