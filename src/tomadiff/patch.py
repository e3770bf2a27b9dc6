"""``apply()`` puts merging on a model, and the :class:`Patch` it returns reports on it and takes it off again."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tomadiff.engine.components import capped_by, controlnets_of, denoisers_of, models_to_merge, require_match, take_off
from tomadiff.engine.controlnet import Forecasts
from tomadiff.engine.handle import Handle
from tomadiff.engine.hooks import unwrap
from tomadiff.engine.model import MARK, PatchedModel
from tomadiff.engine.report import Report, merges_nothing
from tomadiff.errors import PatchError, SettingError
from tomadiff.families.registry import family_of
from tomadiff.methods.base import Method
from tomadiff.methods.registry import RECOMMENDED, chosen_method
from tomadiff.methods.toma import ToMA
from tomadiff.presets import Preset
from tomadiff.presets import available as presets
from tomadiff.steps.forecast import AnyForecast, Forecast
from tomadiff.steps.recommend import Capped, Recommended
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.settings import Ratio, Rule, checked

if TYPE_CHECKING:  # costs are loaded when they are asked for
    from tomadiff.cost.budget import Budget, Choice
    from tomadiff.cost.policy import CostPolicy

logger = logging.getLogger("tomadiff")

GUARD = True  # whether patches are guarded unless told otherwise

_HOW = "give a ratio such as 0.5, a method such as ToMA(ratio=0.5), or a name such as 'tomesd'"
AnyMethod = Annotated[Method | float | str, Rule(_HOW)]
"""A method, its name, or the ratio of the default one."""


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
    """Forecast steps or merge tokens. ``apply(pipe, 0.5)`` is ToMA; alone it does what we recommend for the steps.

    Args:
        target: a diffusers pipeline, or its UNet or transformer (compiled or not).
        method: how to merge; a number is the ratio of :class:`~tomadiff.ToMA` with the family's defaults, a text the
            name of a method as on the command line: ``"tomesd"``.
        schedule: how long plans are kept, instead of the method's own.
        ratio: share of tokens removed, a shorter way to write ``ToMA(ratio)``.
        preset: a method with its schedule by name, file or object, instead of ``method``; see :mod:`tomadiff.presets`.
        flops: the share of the denoiser's FLOPs that no image exceeds, planning included. It chooses how many steps are
            computed, and how much merges; beside a method (``ToMA()``), a preset or a forecast, merging alone.
        speedup: the same for time, as predicted for this kind of machine: how many times as fast.
        guard: leave tokens unmerged where merging is expected to take longer (the default, but with ``flops``).
        forecast: a tolerance or a :class:`~tomadiff.Forecast`, of any denoiser; an idea of tomadiff, not of the paper.
        settings: any other setting of the method, such as ``levels=(0,)``. An earlier patch comes off first.
    """
    given = method if isinstance(method, int | float) else ratio
    budget, own, steps = _budget(flops, speedup, given), None, Forecast.of(forecast)
    method = _unless_recommended(method, ratio, preset, settings)
    alone = not settings and all(one is None for one in (method, schedule, ratio, preset))
    if alone and budget is None:
        return Patch(target, None, None, False, forecast=steps or Recommended())
    if alone and steps is None:
        steps = capped_by(target, budget)
        return Patch(target, ToMA() if steps.merges else None, None, _guards(guard, budget), budget, steps)
    stored = _stored(preset, method)
    if stored is not None:
        method, own, steps = stored.method, stored.schedule, stored.forecast if steps is None else steps
    chosen, usual = chosen_method(method, ratio, settings)
    own = own or usual
    schedule = _left_to(budget, own) if schedule in (None, own) else schedule
    return Patch(target, chosen, schedule, _guards(guard, budget), budget, steps)


def remove(target: Any) -> None:
    """Take whatever patch there is off a pipeline or model (or a copy of one)."""
    Forecasts(denoisers_of(target), controlnets_of(target)).take_off_earlier()
    for _, model in denoisers_of(target):
        take_off(model, MARK)


def _unless_recommended(
    method: AnyMethod | None, ratio: float | None, preset: object, settings: dict[str, Any]
) -> AnyMethod | None:
    """``"recommended"`` is ``apply(pipe)`` by name: no method, and nothing that says how to merge beside it."""
    if method != RECOMMENDED:
        return method
    if ratio is not None or preset is not None or settings:
        given = ", ".join([*(["ratio"] if ratio is not None else []), *(["preset"] if preset else []), *settings])
        raise SettingError(f"What is recommended merges nothing: leave {given} out, or name a method that merges.")
    return None


def _stored(preset: str | Path | Preset | None, method: object) -> Preset | None:
    """The preset that was given, if one was; beside it there is no method."""
    if isinstance(method, str) and method in presets():
        raise SettingError(f"{method!r} is a preset, not a method; call tomadiff.apply(pipe, preset={method!r}).")
    if preset is not None and method is not None:
        raise SettingError(f"Both a preset and method={method!r} were given; give one. ratio=… changes a preset's.")
    return None if preset is None else Preset.of(preset)


def _budget(flops: float | None, speedup: float | None, ratio: object) -> Budget | None:
    """The budget that was given, if one was; a method beside it says everything but the ratio."""
    if flops is None and speedup is None:
        return None
    from tomadiff.cost.budget import Budget

    return Budget(flops, speedup).instead_of(ratio)


def _policy(guard: bool, budget: Budget | None) -> CostPolicy | None:
    """What a patched model asks before it merges, if anything."""
    if not guard and budget is None:
        return None
    from tomadiff.cost.policy import CostPolicy

    return CostPolicy(guard, budget)


def _guards(guard: bool | None, budget: Budget | None) -> bool:
    """Whether to guard; who asks for FLOPs gets FLOPs, also where merging takes longer."""
    return (GUARD and (budget is None or budget.flops is None)) if guard is None else guard


def _left_to(budget: Budget | None, schedule: Schedule) -> Schedule:
    """A schedule that comes with a method or preset; where merging begins is a budget's to choose, if there is one."""
    return schedule if budget is None else replace(schedule, start=0)


class Patch(Handle):
    """Merging and forecasts on a pipeline or model: a handle to report on them, change them, and take them off.

    Also a context manager: ``with tomadiff.apply(pipe, 0.5): …`` takes it off at the end.
    """

    method: Method
    schedule: Schedule
    guard: bool
    budget: Budget | None
    forecast: Forecast | None

    def __init__(
        self,
        target: Any,
        method: Method | None,
        schedule: Schedule | None,
        guard: bool,
        budget: Budget | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        own = ToMA(0.0) if method is None else method
        schedule = (schedule or own.schedule).completed_by(own.schedule)
        self._keep(method=own, schedule=schedule, guard=guard, budget=budget, forecast=forecast)
        if budget is not None:
            budget.require_free(self.method, self.schedule)
        models = [] if method is None else models_to_merge(target)
        self._forecasts = Forecasts(denoisers_of(target), controlnets_of(target))
        for _, model in models:  # all of them before any is touched
            require_match(self.method, family_of(unwrap(model)))
        self._policies = {name: _policy(guard, budget) for name, _ in models}
        self._models = [
            PatchedModel(name, model, self.method, self.schedule, self._policies[name]) for name, model in models
        ]
        try:
            self._put_on()
        except BaseException:  # all or none
            self.remove()
            raise
        self._warn_if_idle()

    def _put_on(self) -> None:
        """Merging first: forecasts go around it. What an earlier patch has put on goes."""
        if self.forecast is not None:
            self._forecasts.require_no_cache()
        for patched in self._models:
            patched.put_on()
        self._forecasts.take_off_earlier(replaced=True)
        if not self._models:
            for _, model in self._forecasts.models:
                take_off(model, MARK, replaced=True)
        if self.forecast is not None:
            self._forecasts.use(self.forecast)

    def _warn_if_idle(self) -> None:
        if self._models and self.budget is None and merges_nothing(self.method, self.schedule):
            logger.warning("ratio=0 merges nothing: the model runs as if it were not patched.")
        elif not self._models and (self.forecast is None or not self.forecast.skips):
            logger.warning("forecast=0 forecasts nothing: the model runs as if it were not patched.")

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
            raise PatchError(f"This patch was {self._state}; call tomadiff.apply again.")
        budget, steps = _budget(flops, speedup, settings.get("ratio")), Forecast.of(forecast)
        if isinstance(self.forecast, Capped) and steps is None:  # of ratio and budget, the last holds
            cap = (1.0, "") if budget is None else (budget.share, str(budget))
            steps = self.forecast.changed(*cap) if budget is not None or "ratio" in settings else None
        if budget is not None and isinstance(steps, Capped) and not self._models:
            self._keep(budget=budget)
        elif settings or any(one is not None for one in (schedule, guard, budget)):
            self._set_merging(schedule, guard, budget, settings)
        if steps is not None:
            self._forecasts.use(steps)
            self._keep(forecast=steps)
        self._warn_if_idle()

    def _set_merging(
        self, schedule: Schedule | None, guard: bool | None, budget: Budget | None, settings: dict[str, Any]
    ) -> None:
        if not self._models:
            raise PatchError("This patch merges nothing; call tomadiff.apply again, with a ratio and a forecast.")
        if budget is None and "ratio" not in settings:
            budget = self.budget
        method = self.method.changed(settings)
        schedule = (schedule or self._schedule_for(method, budget)).completed_by(method.schedule)
        guard = self.guard if guard is None else guard
        if budget is not None:
            budget.require_free(method, schedule)
        for patched in self._models:
            if patched.is_on:
                policy = _policy(guard, budget)
                patched.change(method, schedule, policy)
                self._policies[patched.name] = policy
        self._keep(method=method, schedule=schedule, guard=guard, budget=budget)

    def _schedule_for(self, method: Method, budget: Budget | None) -> Schedule:
        """The schedule there is; one that is the method's own becomes that of the new method."""
        own = self.method.schedule
        return _left_to(budget, method.schedule) if self.schedule in (own, replace(own, start=0)) else self.schedule

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen last to meet the budget, by component; empty without one and before the first call."""
        policies = [(name, policy) for name, policy in self._policies.items() if policy is not None]
        return {name: policy.choice for name, policy in policies if policy.choice is not None}

    def report(self) -> Report:
        """What was merged and forecast so far, as data; with a budget, what was chosen last."""
        forecasts = tuple(one.report() for one in self._forecasts.parts)
        if not self._models:
            return Report("", "", (), forecasts)
        first = self._models[0]
        models = tuple(patched.report() for patched in self._models)
        return Report(str(first.settled), str(first.schedule), models, forecasts)

    def summary(self) -> str:
        """What was merged and forecast so far, as text."""
        return str(self.report()) if self.active else f"{self.report()}\nThis patch was {self._state}."

    def __repr__(self) -> str:
        where = ", ".join(f"{patched.name} ({patched.family.title})" for patched in self._models)
        what = [repr(self.method)] if self._models else []
        what += [str(self.forecast)] if self.forecast is not None else []
        where = where or ", ".join(one.name for one in self._forecasts.parts)
        state = "on" if self.active else f"{self._state}:"
        return f"Patch({state} {where}: {', '.join(what)})"
