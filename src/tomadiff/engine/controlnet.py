"""The ControlNet of a pipeline whose denoising steps are forecast: at a forecast step it is not entered either.

A ControlNet runs before the denoiser, and its outputs are only given to the denoiser. So at a step that is going to be
forecast, empty tensors of the same shapes stand in for them. Two things keep this exact:

- Whether the denoiser is given the outputs as they are is watched at computed steps. Where it is not (guess mode joins
  them with zeros), the ControlNet is computed at every step.
- If the denoiser is computed after all, since its other arguments have changed, the ControlNet is computed too, and its
  outputs are written into what stands in for them.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Hashable
from dataclasses import astuple
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from tomadiff.engine.components import take_off
from tomadiff.engine.driver import OneAtATime, find_driver
from tomadiff.engine.forecast import MARK as FORECAST
from tomadiff.engine.forecast import ForecastModel, form_of, require_no_cache, time_of
from tomadiff.engine.hooks import make_picklable, undo_picklable, unwrap
from tomadiff.engine.outer_hooks import Around
from tomadiff.steps.clock import Clock
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.run import Pattern

MARK = "_tomadiff_control"  # attribute of a ControlNet that leads to this


class ForecastControl:
    """Leaves out calls of a ControlNet at forecast steps of a denoiser.

    Copies of a ControlNet do not: they compute every call, until ``apply`` is called on their pipeline.
    """

    def __init__(self, model: nn.Module, forecast: ForecastModel) -> None:
        self.outer, self.model = model, unwrap(model)
        self._forecast: weakref.ref[ForecastModel] | None = weakref.ref(forecast)
        self._clock, self._threads = Clock(), OneAtATime()
        self._begin(None)

    def _begin(self, generation: int | None) -> None:
        """A new image starts."""
        self._generation = generation
        self._form: Hashable = None  # of the last computed call
        self._specs: list[Any] = []  # of the tensors of its output
        self._structure: Any = None
        self._last: list[weakref.ref[Tensor]] = []  # its output
        self._is_direct = False  # whether the denoiser was given it as it is
        self._pending: list[tuple[Callable[[], Any], list[Tensor]]] = []  # calls left out at this step
        self._step: int | None = None
        self._computed = self._left_out = 0

    def __str__(self) -> str:
        return f"ControlNet: {self._computed} of {self._computed + self._left_out} calls computed"

    # ------------------------------------------------------------------------------------------ on and off
    def put_on(self) -> None:
        """Go around the calls of the ControlNet."""
        forecast = self._forecast() if self._forecast is not None else None
        assert forecast is not None
        forecast.control = weakref.ref(self)
        self.model.__dict__[MARK] = self
        self._around = Around(self.outer, self._call)
        make_picklable(self.model)

    def take_off(self) -> None:
        """Leave the ControlNet as it was."""
        if self.model.__dict__.get(MARK) is not self:
            return
        self._forecast = None
        self._begin(None)
        self._around.stop()
        del self.model.__dict__[MARK]
        undo_picklable(self.model)

    def __deepcopy__(self, memo: dict[int, Any]) -> ForecastControl:
        """Another ControlNet belongs to another denoiser, or to none yet."""
        memo[id(self)] = copied = object.__new__(type(self))
        copied._forecast, copied._clock, copied._threads = None, Clock(), OneAtATime()
        copied._begin(None)
        copied.outer, copied.model, copied._around = copy.deepcopy((self.outer, self.model, self._around), memo)
        return copied

    # ------------------------------------------------------------------------------------------ calls
    def _call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In place of a call of the ControlNet."""
        forecast, driver = self._forecast() if self._forecast is not None else None, find_driver()
        if forecast is None or driver.scheduler is None or not self._threads.admit(driver):
            return call(*args, **kwargs)
        info = self._clock.step_info(time_of(self.model, args, kwargs), driver.scheduler, driver.pipeline)
        if info.generation != self._generation:
            self._begin(info.generation)
        if info.step != self._step:
            self._step, self._pending = info.step, []
        form = form_of(args, kwargs)
        if self._is_direct and form == self._form and forecast.will_forecast(info):
            return self._stand_in(lambda: call(*args, **kwargs))
        output = call(*args, **kwargs)
        self._keep(form, output)
        return output

    def _stand_in(self, call: Callable[[], Any]) -> Any:
        self._left_out += 1
        leaves = [torch.zeros(**spec) if isinstance(spec, dict) else spec for spec in self._specs]
        self._pending.append((call, _tensors(leaves)))
        return _pytree.tree_unflatten(leaves, self._structure)

    def _keep(self, form: Hashable, output: Any) -> None:
        self._computed += 1
        leaves, self._structure = _pytree.tree_flatten(output)
        self._form, self._specs = form, list(map(_spec, leaves))
        self._last = list(map(weakref.ref, _tensors(leaves)))
        self._is_direct = False

    def before(self, forecast: ForecastModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The denoiser is about to be computed with these arguments."""
        if self._forecast is None or self._forecast() is not forecast:
            return  # a copy
        pending, self._pending = self._pending, []
        for call, empty in pending:
            self._computed, self._left_out = self._computed + 1, self._left_out - 1
            leaves = _tensors(call())
            for target, leaf in zip(empty, leaves, strict=True):
                target.copy_(leaf)
            self._last = list(map(weakref.ref, empty))
        given = set(map(id, _tensors((args, kwargs))))
        self._is_direct = bool(self._last) and all(id(ref()) in given for ref in self._last)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _spec(leaf: Any) -> Any:
    """How to make a tensor like this one; anything else as it is."""
    return {"size": leaf.shape, "dtype": leaf.dtype, "device": leaf.device} if isinstance(leaf, Tensor) else leaf


class Forecasts:
    """Forecasts of all denoisers of a pipeline, and of its ControlNet.

    Attributes:
        models: the denoisers by name.
        parts: what goes around each of them.
    """

    def __init__(self, models: list[tuple[str, nn.Module]], controlnets: list[nn.Module]) -> None:
        self.models, self._controlnets = models, controlnets
        self.parts: list[ForecastModel] = []
        self._controls: list[ForecastControl] = []

    def require_no_cache(self) -> None:
        """See :func:`tomadiff.engine.forecast.require_no_cache`."""
        for _, model in self.models:
            require_no_cache(unwrap(model))

    def use(self, settings: Forecast) -> None:
        """Put forecasts on, or change those that are."""
        if not self.parts:
            self.parts = [ForecastModel(name, model, settings) for name, model in self.models]
            for part in self.parts:
                part.put_on()
            if len(self.parts) == 1:  # else it is not known whose steps the ControlNet's are
                self._controls = [ForecastControl(model, self.parts[0]) for model in self._controlnets]
            for control in self._controls:
                control.put_on()
        for part in self.parts:
            part.change(settings)

    @property
    def pattern(self) -> Pattern:
        """Which steps of the last image were computed; of several denoisers, by all of them."""
        patterns = [part.pattern for part in self.parts]
        return Pattern(*(tuple(sorted(chain(*steps))) for steps in zip(*map(astuple, patterns), strict=True)))

    def take_off(self) -> None:
        """Leave the models as they were."""
        for part in self.parts:
            part.take_off()
        for control in self._controls:
            control.take_off()

    def take_off_earlier(self, replaced: bool = False) -> None:
        """Take off what an earlier patch has put on."""
        for _, model in self.models:
            take_off(model, FORECAST, replaced)
        for model in self._controlnets:
            take_off(model, MARK)
