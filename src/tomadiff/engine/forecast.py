"""One model whose denoising steps are forecast: what happens in place of each of its calls.

The model may be any denoiser; nothing inside it is touched. :mod:`tomadiff.steps.forecast` has the rule. It is an idea
of tomadiff, not of the paper.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree

from tomadiff.engine.driver import Driver, ImageEnd, OneAtATime, find_driver
from tomadiff.engine.hooks import EndOfImage, make_picklable, undo_picklable, unwrap
from tomadiff.engine.model import MARK as PATCH
from tomadiff.engine.outer_hooks import Around, PassName, other_cache, processes_of
from tomadiff.engine.report import ForecastReport
from tomadiff.engine.samplers import adds_noise, step_sizes
from tomadiff.errors import PatchError, UnsupportedModelError
from tomadiff.families.base import parameters_of
from tomadiff.families.registry import describe_supported
from tomadiff.steps.clock import Clock, StepInfo
from tomadiff.steps.forecast import Forecast, Forecaster
from tomadiff.steps.recommend import Capped, Recommended
from tomadiff.steps.run import Pattern, Run

logger = logging.getLogger("tomadiff")

MARK = "_tomadiff_forecast"  # attribute of a model that leads to its forecast
_TIMES = ("timestep", "timesteps", "t", "sigma", "timestep_ratio", "r")  # what models call the time


class ForecastModel:
    """Forecasts denoising steps of one model.

    Attributes:
        clock: which step a call belongs to; merging on the same model reads it here, so that it counts every step.
        info: the call at work.
        control: the ControlNet whose outputs the model is given; see :mod:`tomadiff.engine.controlnet`.
    """

    def __init__(self, name: str, model: nn.Module, settings: Forecast) -> None:
        self.name, self.outer, self.model = name, model, unwrap(model)
        self.clock, self.info = Clock(), StepInfo(0, 0, 0)
        self._forecaster = Forecaster(settings)
        self._threads = OneAtATime()
        self._image_end = ImageEnd(self._end_image)
        self._names: Counter[str | None] = Counter()
        self._place = (0, -1)  # image and step of the last call
        self.control: weakref.ref[Any] | None = None
        self.is_on = self.replaced = False
        self._run, self._why = Run(), settings.why(Run())
        self._said = set[str]()

    @property
    def given(self) -> Forecast:
        """What is to be forecast, as it was given."""
        return self._forecaster.given

    @property
    def settings(self) -> Forecast:
        """What is forecast in this run."""
        return self._forecaster.settings

    @property
    def capped(self) -> tuple[int, ...] | None:
        """Steps of this run that a budget lets be computed; ``None`` if none decides about steps, or all may be."""
        steps = self.settings.steps if isinstance(self.given, Capped) else None
        return None if steps is None else tuple(step for step in steps if step >= self._run.first)

    def change(self, settings: Forecast) -> None:
        """Go on with other settings, from the next image on."""
        self._forecaster, self._why = Forecaster(settings), settings.why(Run())
        self.clock.begin()

    def report(self) -> ForecastReport:
        """What was forecast in the last image."""
        control = None if self.control is None else self.control()
        note = "" if control is None else str(control)
        return ForecastReport(self.name, type(self.model).__name__, self.settings, self.pattern, note, self._why)

    def begin(self, steps: int | None = None) -> None:
        """A new image starts; see :meth:`Clock.begin`."""
        self.clock.begin(steps, find_driver().pipeline)

    def state(self, step: int) -> None:
        """The next calls belong to ``step``; see :meth:`Clock.state`."""
        self.clock.state(step, find_driver().pipeline)

    @property
    def pattern(self) -> Pattern:
        """What was done with the steps of the last image."""
        return self._forecaster.pattern

    # ------------------------------------------------------------------------------------------ on and off
    def put_on(self) -> None:
        """Go around the calls of the model, in place of any earlier forecast."""
        require_no_cache(self.model)
        if isinstance(self.given, Capped | Recommended):
            require_denoiser(self.model)
        old = self.model.__dict__.get(MARK)
        if old is not None:
            old.take_off()
        self.is_on = True
        self.model.__dict__[MARK] = self
        self._pass = PassName(self.model)
        self._end = EndOfImage(self.model, self._end_of_call)
        self._around = Around(self.outer, self._call)
        make_picklable(self.model)
        self._tell_merging(self)

    def take_off(self) -> None:
        """Leave the model as it was."""
        if not self.is_on:
            return
        self.is_on = False
        for part in (self._around, self._end, self._pass):
            part.stop()
        self._tell_merging(None)
        self.model.__dict__.pop(MARK, None)
        undo_picklable(self.model)
        self._forecaster.end()

    def _tell_merging(self, forecast: ForecastModel | None) -> None:
        """Merging on the same model takes the step from here, or from its own clock again."""
        patched = self.model.__dict__.get(PATCH)
        if patched is not None:
            patched.forecast = forecast

    def packed(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """How to go on where a pickle is opened."""
        return _put_on, (self.name, self.given)

    # ------------------------------------------------------------------------------------------ calls
    def _call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In place of a call of the model."""
        driver, time = find_driver(), time_of(self.model, args, kwargs)
        self._threads.enter(driver)
        self.info = self.clock.step_info(time, driver.scheduler, driver.pipeline)
        self._enter(driver)
        name = self._pass.name
        key = (name, self._names[name])
        self._names[name] += 1
        form = object() if _is_per_token(time, args, kwargs) else form_of(args, kwargs)
        return self._forecaster.call(self.info.step, key, form, lambda: self._compute(call, args, kwargs))

    def _compute(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        control = None if self.control is None else self.control()
        if control is not None:
            control.before(self, args, kwargs)
        return call(*args, **kwargs)

    def will_forecast(self, info: StepInfo) -> bool:
        """Whether the next calls, which belong to ``info`` of the same scheduler, are going to be forecast."""
        own, theirs = self.info.timeline, info.timeline
        if own is None or theirs is None or own.timesteps is not theirs.timesteps:
            return False  # another image
        return self.is_on and self._forecaster.will_forecast(info.step)

    def _enter(self, driver: Driver) -> None:
        place = self.info.generation, self.info.step
        if place[0] != self._place[0]:
            require_no_cache(self.model)
            self._image_end.follow(driver)
            self._forecaster.group = processes_of(self.model)
            self._forecaster.begin(self.info.total, self.info.times, step_sizes(driver.scheduler, self.info.step))
            self._settle(Run(self.info.total, self.info.step, adds_noise(driver.scheduler), driver.guidance))
        if place != self._place:
            self._names.clear()
        self._place = place

    def _settle(self, run: Run) -> None:
        """What is forecast in this run; says once why nothing is, where somebody else chose that."""
        self._run, self._why = run, self.given.why(run)
        self._forecaster.settings = self.given.of_run(run)
        if self._why and not self.settings.skips and self._why not in self._said:
            self._said.add(self._why)
            logger.warning("%s: %s.", self.name, self._why)

    def _end_of_call(self) -> None:
        if self._threads.is_mine():  # or another thread ended another image
            self._image_end.end()

    def _end_image(self) -> None:
        self.clock.begin()
        self._forecaster.end()


def require_denoiser(model: nn.Module) -> None:
    """Raise if a model takes no time: for those who ask for what is recommended, and not for a forecast."""
    if not set(_TIMES) & set(parameters_of(type(model).forward)):
        raise UnsupportedModelError(
            f"{type(model).__name__} takes no timestep, so there are no steps to forecast. {describe_supported()}"
        )


def require_no_cache(model: nn.Module) -> None:
    """Raise if a cache is on the model: it would take outputs of other steps for those of the last one."""
    cache = other_cache(model)
    if cache is not None:
        raise PatchError(
            f"{cache} is on {type(model).__name__}, and forecasts do not go with other caches over steps. Take it off "
            "(model.disable_cache()), or apply without forecast=…."
        )


# ---------------------------------------------------------------------------------------------- arguments
def time_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The timestep that a model is called with; ``None`` if it cannot be told from the names."""
    given = dict(zip(parameters_of(type(model).forward), args, strict=False)) | kwargs
    return next((given[name] for name in _TIMES if given.get(name) is not None), None)


def _is_per_token(time: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether tokens or frames have times of their own, which no scheduler's time can stand for."""
    if not isinstance(time, Tensor) or time.dim() == 0 or time.numel() == 1:
        return False
    if time.dim() > 1 and time[0].numel() > 1:
        return True
    if any(isinstance(value, list) for value in (*args, *kwargs.values())):
        return False  # of samples
    leaves = _pytree.tree_leaves((args, kwargs))
    return all(leaf.shape[0] != len(time) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 1)


def form_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Names and shapes of all arguments: with others, earlier outputs say nothing."""
    leaves, structure = _pytree.tree_flatten((args, kwargs))
    return str(structure), tuple(map(_form_of_leaf, leaves))


def _form_of_leaf(leaf: Any) -> tuple[object, ...]:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return type(leaf), leaf if isinstance(leaf, bool | str) else None


def _put_on(model: nn.Module, name: str, settings: Forecast) -> None:
    """Forecast steps of a model that comes out of a pickle as before."""
    ForecastModel(name, model, settings).put_on()
