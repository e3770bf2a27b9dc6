"""Merging and forecasts in a model that another program runs, which says itself what begins, what is called and what
ends.

Nothing of diffusers is looked for: no pipeline, no scheduler, no hooks. One :class:`HostedRun` is one run of a sampler.
All that it keeps is in it, and the model is as it was once it has ended.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.engine.hooks import DATA
from tomadiff.engine.model import MARK, PatchedModel
from tomadiff.engine.policy import Policy
from tomadiff.engine.report import ForecastReport, Report
from tomadiff.engine.site import Site
from tomadiff.families.base import Family, ModelCall
from tomadiff.methods.base import Method
from tomadiff.steps.clock import StepInfo, Timeline
from tomadiff.steps.forecast import Forecast, Forecaster
from tomadiff.steps.run import Run
from tomadiff.steps.schedule import Schedule

_SAME = 1e-4  # relative difference of noise levels that count as one
_MOST_CALLS = 8  # of one kind in a step; what calls more often looks for its steps itself


# ---------------------------------------------------------------------------------------------- other names
class Named:
    """The forward of a module under the names of its own, for those who know only the names of diffusers."""

    def __init__(self, inner: Callable[..., Any], names: Mapping[str, str], in_place: bool) -> None:
        self.inner, self._in_place = inner, in_place
        self._own = {general: own for own, general in names.items()}

    def __call__(self, module: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Call the module; who calls it goes on with its tokens, so they are not written into."""
        tokens = hidden_states.clone() if self._in_place else hidden_states
        others = {self._own.get(name, name): kwargs[name] for name in kwargs}
        if not _positions(type(module).forward):
            return self.inner(module, **{self._own["hidden_states"]: tokens, **others})
        return self.inner(module, tokens, *args, **others)


@lru_cache(maxsize=16)
def renamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(module, hidden_states, **others)`` for a module that is called with names of its own.

    A module that does not name its arguments is given them in the order of ``Op.names``.
    """

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        site: Site = getattr(self, DATA)
        places = _positions(type(self).forward) or tuple(site.facts.names)
        given = dict(zip(places, args, strict=False)) | kwargs
        general = {site.facts.names.get(name, name): value for name, value in given.items()}
        return function(self, general.pop("hidden_states"), **general)

    return call


@lru_cache(maxsize=64)
def _positions(forward: Callable[..., Any]) -> tuple[str, ...]:
    """What is given by position; none where a forward only passes on what it is given."""
    known = inspect.signature(forward).parameters.values()
    return tuple(one.name for one in known if one.kind is one.POSITIONAL_OR_KEYWORD)[1:]


# ---------------------------------------------------------------------------------------------- merging
class HostedModel(PatchedModel):
    """Merging in a model whose calls are announced with :meth:`merging`; calls that are not run as they are."""

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        method: Method,
        schedule: Schedule,
        policy: Policy | None = None,
        backend: str = "",
    ) -> None:
        super().__init__("model", model, method, schedule, policy, family)
        self._backend = backend

    def put_on(self) -> None:
        """See :meth:`PatchedModel.put_on`."""
        super().put_on()
        for _, site in self.sites:
            if site.facts.names or site.facts.in_place:
                site.inner = Named(site.inner, site.facts.names, site.facts.in_place)

    def take_off(self) -> None:
        """See :meth:`PatchedModel.take_off`."""
        for _, site in self.sites:
            if isinstance(site.inner, Named):
                site.inner = site.inner.inner
        super().take_off()

    def _function(self, site: Site) -> Callable[..., Any]:
        usual = super()._function(site)
        return renamed(usual) if site.facts.names else usual

    def _follow(self) -> None:
        """Calls are announced."""

    def attention_backend(self) -> str:
        """See :meth:`PatchedModel.attention_backend`."""
        return self._backend

    def dtype(self, image: Tensor) -> torch.dtype:
        """Hosts give the image in what they compute in, whatever the weights are in."""
        return image.dtype

    @contextmanager
    def merging(self, info: StepInfo, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Merge in the call of the model with these arguments, which is made inside."""
        if self.model.__dict__.get(MARK) is not self:  # or another run on the same model has begun meanwhile
            self.put_on()
        self.prepare(ModelCall(self.model, args, kwargs, self.family), self.context.move(info))
        try:
            yield
        finally:
            for group in self.groups:
                group.active = False


# ---------------------------------------------------------------------------------------------- a run
class HostedRun:
    """One run of a sampler.

    Args:
        levels: the noise level of every step, in order.
        times: the same as the model is told them (timesteps from 0 to 1000, or noise levels from 0 to 1); forecasts
            need them.
        forecast: which steps are forecast, if any.
        sizes: how much of each step's output goes into the image; without, forecasts are not corrected.
        guidance: scale of classifier-free guidance.
    """

    def __init__(
        self,
        levels: Sequence[float],
        times: Sequence[float] | None = None,
        forecast: Forecast | None = None,
        sizes: Sequence[float] | None = None,
        guidance: float = 1.0,
    ) -> None:
        self._levels, self._times = tuple(levels), Timeline(times) if times is not None else None
        run, given = Run(len(self._levels), guidance=guidance), forecast or Forecast(0.0)
        self._why = given.why(run)
        self._forecast = None if forecast is None else given.of_run(run)
        self._forecaster = Forecaster(self._forecast or Forecast(0.0))
        self._forecaster.begin(len(self._levels), times, sizes)
        self._step = self._passes = 0
        self._names: Counter[Hashable] = Counter()
        self.merged: HostedModel | None = None

    def merge(self, merged: HostedModel) -> None:
        """Merge in a model, from its next call on; another run's merging on it ends."""
        self.end_merging()
        self.merged = merged
        merged.put_on()

    # ------------------------------------------------------------------------------------------ steps
    def at(self, level: float) -> int:
        """The next calls are made at this noise level; the step that they belong to.

        That is the last one whose level the run has reached: samplers of higher order look between two levels.
        """
        step = _reached(self._levels, level, self._step)
        if step != self._step:
            self._names.clear()
            self._step, self._passes = step, 0
        return step

    def outputs(self, name: Hashable, form: Hashable, compute: Callable[[], Any]) -> Any:
        """What the model gives at this noise level: forecast, or computed by ``compute()``.

        Args:
            name: what is asked for, such as the conditions; the same at every step.
            form: anything else that outputs depend on; with another form, earlier outputs say nothing.
            compute: calls the model.
        """
        key = (name, self._names[name])
        self._names[name] += 1
        if key[1] >= _MOST_CALLS:
            return compute()
        return self._forecaster.call(self._step, key, form, compute)

    @contextmanager
    def merging(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Merge in the call of ``model`` with these arguments, which is made inside; other models run as they are."""
        if self.merged is None or self.merged.model is not model:
            yield
            return
        info = StepInfo(1, self._step, self._passes, len(self._levels), self._times)
        self._passes += 1
        with self.merged.merging(info, args, kwargs):
            yield

    # ------------------------------------------------------------------------------------------ the end
    def end(self) -> None:
        """Leave the model as it was, and give the memory back; calling it again does nothing."""
        self._forecaster.end()
        self.end_merging()

    def end_merging(self) -> None:
        """Leave the model as it was."""
        if self.merged is not None:
            self.merged.take_off()

    def report(self, model: str = "") -> Report:
        """What was done so far; ``model`` is what the forecasts are called after."""
        forecasts: tuple[ForecastReport, ...] = ()
        if self._forecast is not None:
            forecasts = (ForecastReport("model", model, self._forecast, self._forecaster.pattern, why=self._why),)
        if self.merged is None:
            return Report("", "", (), forecasts)
        return Report(str(self.merged.settled), str(self.merged.schedule), (self.merged.report(),), forecasts)


def _reached(levels: Sequence[float], level: float, step: int) -> int:
    """The last of ``levels`` that is not behind ``level``; where they rise and fall, the next equal one."""
    if not levels:
        return 0
    falls = all(after <= before for before, after in pairwise(levels))
    rises = all(after >= before for before, after in pairwise(levels))
    slack = _SAME * max(abs(level), _SAME)
    if not falls and not rises:
        equal = (place for place in range(step, len(levels)) if abs(levels[place] - level) <= slack)
        return next(equal, step)
    sign = 1 if falls else -1
    return max((place for place, one in enumerate(levels) if sign * (one - level) >= -slack), default=0)
