"""What is compared: the model as it is, or with a method, its schedule, a forecast, and other tools beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tomadiff.cost.budget import Budget
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.generate import Call, arguments_of
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.methods.base import Method
from tomadiff.methods.registry import FULL as FULL
from tomadiff.methods.registry import RECOMMENDED as RECOMMENDED
from tomadiff.methods.registry import named
from tomadiff.patch import Patch, apply
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.recommend import Recommended
from tomadiff.steps.schedule import Schedule

UNGUARDED = (
    "Tokens merge wherever the method says, so that methods are compared alike (guard=False). tomadiff.apply leaves "
    "tokens unmerged where that is expected to be faster."
)
"""What every table of merged images has to say."""

Around = Callable[[Any], AbstractContextManager[Any]]
"""Puts something else on a pipeline, such as a cache, and takes it off again."""


@dataclass(frozen=True)
class Variant:
    """Settings by the name they have in every table; without any, the unmerged model.

    Attributes:
        name: in tables and in the names of images.
        method: how to merge; ``None`` does not.
        schedule: when to merge and to plan.
        around: what else is on the pipeline.
        forecast: which steps are not computed.
        entry: name of the method in the catalogue, where it has one.
    """

    name: str = FULL
    method: Method | None = None
    schedule: Schedule = field(default_factory=Schedule)
    around: Around = nullcontext
    forecast: Forecast | None = None
    entry: str = ""

    @classmethod
    def named(cls, entry: str, ratio: float = 0.5) -> Variant:
        """A method of the catalogue, or what is recommended; one with a ratio of its own (ToDo) keeps it."""
        if entry == RECOMMENDED:
            return cls(entry, forecast=Recommended(), entry=entry)
        return cls(entry, *named(entry, ratio), entry=entry)

    @classmethod
    def of(cls, name: str, method: Method, schedule: Schedule | None = None) -> Variant:
        """With the method's own schedule unless another is given, and its ratio in the name."""
        return cls(f"{name} {method.ratio:.2f}", method, schedule or method.schedule)

    def forecasting(self, tolerance: float) -> Variant:
        """The same with forecast steps; a tolerance of 0 forecasts none."""
        if not tolerance:
            return self
        name = f"forecast-{tolerance:g}" if self.method is None else f"{self.name}+forecast-{tolerance:g}"
        return replace(self, name=name, forecast=Forecast(tolerance))

    @property
    def ratio(self) -> float:
        """Share of tokens removed."""
        return 0.0 if self.method is None else self.method.ratio

    @property
    def tolerance(self) -> float:
        """Of forecast steps, where somebody gave one; else 0."""
        given = type(self.forecast) is Forecast and not self.forecast.is_fixed
        return self.forecast.tolerance if given and self.forecast else 0.0

    @property
    def group(self) -> tuple[str, float]:
        """Name and ratio: what the samples of a run are grouped by."""
        return self.name, self.ratio

    @property
    def label(self) -> str:
        """What it is called in lines that people read."""
        return self.name if self.method is None else f"{self.name} {self.ratio:.0%}"

    @contextmanager
    def on(self, target: Any) -> Iterator[Patch | None]:
        """While it lasts, a pipeline or model has these settings; the patch, if there is one."""
        with self.around(target), self._patched(target) as patch:
            yield patch

    def _patched(self, target: Any) -> AbstractContextManager[Patch | None]:
        if self.method is not None:
            return apply(target, self.method, schedule=self.schedule, guard=False, forecast=self.forecast)
        return nullcontext() if self.forecast is None else apply(target, forecast=self.forecast)


def variants(methods: Sequence[str], ratios: Sequence[float], forecasts: Sequence[float] = (0.0,)) -> list[Variant]:
    """In full, then every method at every ratio with every forecast, by tolerance.

    A method with a ratio of its own (ToDo) comes once.
    """
    wanted = [Variant()]
    for method, ratio, tolerance in product(methods, ratios, forecasts):
        merging = Variant() if method == FULL else Variant.named(method, ratio)
        wanted.append(merging.forecasting(tolerance))
    return list(dict.fromkeys(wanted))


def require_supported(pipe: Any, wanted: Sequence[Variant]) -> None:
    """Raise before the first image, not hours later, if a method does not work on this pipeline."""
    for variant in wanted:
        if variant.method is not None:
            apply(pipe, variant.method, schedule=variant.schedule, guard=False).remove()


def supported_variants(target: Any, wanted: Sequence[Variant]) -> tuple[list[Variant], list[str]]:
    """Those that work on a pipeline or model, and one line for each method that does not."""
    refused: dict[str, str] = {}
    for variant in wanted:
        try:
            require_supported(target, [variant])
        except UnsupportedModelError as problem:
            refused[variant.entry] = f"{variant.entry}: {problem}"
    return [variant for variant in wanted if variant.entry not in refused], list(refused.values())


# ---------------------------------------------------------------------------------------------- budgets
def within(pipe: Any, method: str, budget: Budget, prompt: Prompt, call: Call, batch: int = 1) -> Variant:
    """``method`` with the ratio and first merged step that keep images like this one within ``budget``.

    What is recommended computes fewer steps, too.

    They are chosen at the first call of the denoiser, which is not computed.
    """
    if method == FULL:
        raise SettingError(f"In full nothing is left out, so {budget} cannot be met; leave out --method {FULL}.")
    merging, own = (None, None) if method == RECOMMENDED else named(method)
    with apply(pipe, merging, schedule=own, guard=False, flops=budget.flops, speedup=budget.speedup) as patch:
        stop = models.denoiser(pipe).register_forward_pre_hook(_stop)
        try:
            pipe(**arguments_of(pipe, [prompt] * batch, range(batch), call))
        except _Stopped:
            pass
        finally:
            stop.remove()
        choice, pattern = next(iter(patch.choices.values()), None), patch.report().forecasts
    forecast = pattern[0].settings if pattern and pattern[0].settings.skips else None
    if choice is None or (method == RECOMMENDED and choice.ratio == 0):
        return Variant(f"{method}-{budget}", forecast=forecast, entry=method)
    chosen, schedule = named("toma" if method == RECOMMENDED else method, choice.ratio)
    merged_from = choice.ratio_choice.on(replace(schedule, start=choice.start))
    return Variant(f"{method}-{budget}", chosen, merged_from, forecast=forecast, entry=method)


class _Stopped(Exception):  # noqa: N818 - it is no error
    """The choice is made."""


def _stop(*_: Any) -> None:
    raise _Stopped
