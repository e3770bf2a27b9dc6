"""Forecast the outputs of denoising steps instead of computing them. An idea of tomadiff, not of the paper.

Between two computed steps the output of a denoiser moves almost along a line, so a step that the line predicts well
need not be computed. Which steps these are is measured in the run itself: whenever a step is computed, its output is
compared with what the forecast would have been. This is the embedded error estimate of ODE solvers.

For each guidance pass, with the last two computed outputs ``y₀, y₁`` at the times ``t₀, t₁``:

- The forecast at ``t`` is ``y₁ + γ · (t − t₁)/(t₁ − t₀) · (y₁ − y₀)``. ``γ = 0`` repeats the last output (order 0),
  ``γ = 1`` follows the line (order 1). For each sample, ``γ`` is what would have forecast ``y₁`` best; see
  :mod:`tomadiff.steps.history`.
- Time is the log-odds of the noise level: along it outputs move most evenly, and both ends of a run, where they change
  most, are further apart.
- The error grows with the distance to the power of 1.5. Its rate is what the forecast of the last computed step missed,
  relative to its output.
- A step is forecast while the sum of its estimates since the last computed step stays below the tolerance.
- The next computed output makes up for what the forecasts before it missed: by then there are outputs on both sides.

Only tensors and numbers are seen here. Which call belongs to which step is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from tomadiff.errors import SettingError
from tomadiff.steps.history import PassHistory, growth, needs_grad
from tomadiff.steps.run import Pattern, Run
from tomadiff.steps.times import evened
from tomadiff.utils.settings import Count, Index, Rule, Settings

_NEEDED = 4  # computed steps before the first estimate: three outputs give γ, the fourth tests it
_WARM_UP = 0.1  # share of the run that is computed first: outputs change least regularly there
_MOST_IN_A_ROW = 0.15  # share of the run; an estimate says nothing about what lies far ahead
_ENDING = 3  # of the last steps, none are forecast in a row: outputs change faster there than the rate has seen
_FEW_STEPS = 12  # below, early outputs matter more than the last one
_CORRECTED = 8  # steps; in shorter runs each is so long that the model itself makes up for errors before it
_FALL = 0.7  # an error rate falls to this share at least from one computed step to the next: it may be small by chance

Share = Annotated[float, Rule("give a number from 0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True)
class Forecast(Settings):
    """Which denoising steps are forecast from earlier ones instead of computed.

    This is an idea of tomadiff, not of the paper.
    ``Forecast(0.05)`` measures the error and decides; ``every`` and ``steps`` are fixed patterns.

    Attributes:
        tolerance: forecast while the estimated relative error of the outputs, summed since the last computed step,
            stays below it. 0 computes every step. The worst sample and the worst guidance pass decide for all.
        every: compute every so many steps, whatever the error: counted back from the last one, and in short runs (below
            12 steps) from where ``start`` ends.
        start: how much is computed first with ``every``: a share of the run, or (a whole number) steps.
        steps: compute these steps, counted from 0, and no others: it replays the pattern of another run.
        correct: let computed outputs make up for what the forecasts before them missed, where the sampler is known.
    """

    tolerance: Share = 0.05
    every: Count | None = None
    start: Index | Share = 0.2
    steps: tuple[Index, ...] | None = None
    correct: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None and self.steps is not None:
            raise SettingError("Both every and steps were given to Forecast; give one of them.")
        if self.steps is not None:
            object.__setattr__(self, "steps", tuple(sorted({0, *self.steps})))

    @classmethod
    def of(cls, given: Forecast | float | None) -> Forecast | None:
        """What ``forecast=…`` means: a tolerance, settings, or none."""
        return given if given is None or isinstance(given, Forecast) else cls(given)

    def __str__(self) -> str:
        values = [(one.name, getattr(self, one.name), one.default) for one in fields(Forecast)[1:]]
        tolerance = [] if self.is_fixed else [f"{self.tolerance:g}"]
        return f"Forecast({', '.join([*tolerance, *(f'{name}={own}' for name, own, usual in values if own != usual)])})"

    @property
    def skips(self) -> bool:
        """Whether any step may be left out."""
        return self.steps is not None or (self.tolerance > 0 if self.every is None else self.every > 1)

    @property
    def is_fixed(self) -> bool:
        """Whether the pattern follows from the settings alone, not from the image."""
        return self.every is not None or self.steps is not None

    def computes(self, step: int, total: int | None, first: int = 0) -> bool:
        """Whether a fixed pattern computes ``step`` of ``total``, in a run that begins with step ``first``."""
        if self.steps is not None:
            return step in self.steps
        assert self.every is not None
        start = self.start
        if not isinstance(start, int):
            start = _NEEDED if total is None else round(start * (total - first))
        start = first + max(1, start)
        behind = step - start if total is None or total - first < _FEW_STEPS else total - 1 - step
        return step < start or behind % self.every == 0

    def of_run(self, _: Run) -> Forecast:
        """The settings for a run; see :mod:`tomadiff.steps.recommend` for some that depend on it."""
        return self

    def why(self, _: Run) -> str:
        """Why these, where somebody else has chosen them."""
        return ""

    def least(self, total: int) -> float:
        """The smallest share of so many steps that may be computed."""
        count = row = 0
        for step in range(total):
            if self.is_fixed or not self.skips:
                computes = not self.skips or self.computes(step, total)
            else:
                computes = not may_forecast(step, total, count, row)
            count, row = (count + 1, 0) if computes else (count, row + 1)
        return count / total


AnyForecast = Annotated[
    Forecast | float, Rule("give a tolerance such as 0.05, or a Forecast such as Forecast(every=2)")
]
"""A forecast, or its tolerance."""


def bounds(total: int | None) -> tuple[int, int]:
    """Steps that are computed first, and steps that may be forecast in a row, in a run of ``total`` steps."""
    if total is None:
        return _NEEDED, 2
    return max(_NEEDED, round(_WARM_UP * total)), max(1, round(_MOST_IN_A_ROW * total))


def may_forecast(step: int, total: int | None, computed: int, row: int) -> bool:
    """Whether a step may be forecast at all, after so many computed ones and so many forecast ones in a row."""
    warm_up, most = bounds(total)
    most = min(most, computed - warm_up + 1)  # the first row is of one; every computed step allows one more
    if total is not None and step >= total - _ENDING:
        most = 1
    return computed >= warm_up and row < most and (total is None or step < total - 1)


class Forecaster:
    """Decides which steps of an image are computed, and forecasts the outputs of the others.

    On a GPU it waits at most once for each computed step, and never at a forecast one.
    """

    def __init__(self, settings: Forecast) -> None:
        self.given = self.settings = settings
        self.group: Any = None  # of processes that compute one image together: the first decides, the others follow
        self.begin()

    def begin(
        self, total: int | None = None, times: Sequence[float] | None = None, sizes: Sequence[float] | None = None
    ) -> None:
        """A new image starts: ``total`` steps at ``times``, where they are known.

        ``sizes`` say how much of each step's output goes into the image; without, outputs are not corrected.
        """
        usable = times is not None and len(set(times)) == len(times)
        self._times = evened(times) if times and usable else None  # repeated ones (Heun) are no measure: the number is
        self._sizes = sizes if usable and len(sizes or ()) == total else None
        self._total = total
        self._first: int | None = None
        self._step: int | None = None
        self._computes = True
        self._computed: list[int] = []
        self._forecast: list[int] = []
        self._errors: list[float] = []
        self._start_over()

    def end(self) -> None:
        """Give the memory back; the pattern can still be read."""
        self._start_over()

    def _start_over(self) -> None:
        """Forget outputs and errors: what comes next has little to do with them."""
        self._passes: dict[Hashable, PassHistory] = {}
        self._seen: set[Hashable] = set()
        self._rates: list[Tensor] = []  # error rates of the last computed step, by pass
        self._worst: Tensor | None = None  # error rate with its memory, on the device
        self._rate: float | None = None  # the same, once it was read
        self._since = 0.0  # estimated error since the last computed step
        self._row = 0  # forecast steps since then
        self._count = 0  # computed steps since the start

    @property
    def pattern(self) -> Pattern:
        """What was done with the steps of this image so far."""
        return Pattern(tuple(self._computed), tuple(self._forecast), tuple(self._errors))

    def call(self, step: int, key: Hashable, form: Hashable, compute: Callable[[], Any]) -> Any:
        """The output of one call of the model: forecast, or computed by ``compute()``.

        Args:
            step: number of the denoising step.
            key: name or number of the guidance pass.
            form: names and shapes of the arguments; another form starts over.
            compute: calls the model.
        """
        if not self.settings.skips:
            return compute()
        known = self._passes.get(key)
        if step != self._step:
            self._enter(step, fits=known is not None and known.form == form)
        elif not self._computes and (known is None or known.form != form):
            self._start_over()  # a pass that was not there before
            self._computes = True
        self._seen.add(key)
        if self._computes:
            output = self._observe(key, form, compute())
        else:
            output = self._passes[key].forecast(self._time(step), self._size(step))
        if self._is_last(step) and self._seen >= set(self._passes):
            self.end()
        return output

    def will_forecast(self, step: int) -> bool:
        """Whether calls of ``step`` are going to be forecast if their arguments are like the last ones."""
        if step == self._step or not self.settings.skips:
            return not self._computes
        return self._seen == set(self._passes) and self._estimated(step) is not None

    def _enter(self, step: int, fits: bool) -> None:
        """Decide for a new step and all its passes."""
        if self._first is None:
            self._first = step
        if not fits or self._seen != set(self._passes):
            self._start_over()  # other arguments, or a pass has ended
        self._seen = set()
        error = self._estimated(step)
        self._step, self._computes = step, error is None
        if error is None:
            self._computed.append(step)
            self._since, self._row, self._count = 0.0, 0, self._count + 1
            return
        self._forecast.append(step)
        self._row += 1
        if not self.settings.is_fixed:
            self._since += error
            self._errors.append(error)

    def _estimated(self, step: int) -> float | None:
        """The estimated error of a step that may be forecast, 0 with a fixed pattern; ``None`` if it is computed."""
        if not self._passes:
            return None
        if self.settings.is_fixed:
            return None if self.settings.computes(step, self._total, self._first or 0) else 0.0
        self._collect()
        if self._worst is None or self._is_bound(step):
            return None
        error = self._read(self._worst) * growth(self._time(step) - self._time(self._computed[-1]))
        tests = self._count - bounds(self._length)[0] + 1
        trusted = 1 - 1 / (tests + 2)  # few tests may have gone well by chance
        return error if self._since + error < trusted * self.settings.tolerance else None  # also if it is not a number

    def _is_bound(self, step: int) -> bool:
        """Whether the step is computed whatever the error."""
        return not may_forecast(step - (self._first or 0), self._length, self._count, self._row)

    @property
    def _length(self) -> int | None:
        """Steps of this run, which may begin further on."""
        return None if self._total is None else self._total - (self._first or 0)

    def _is_last(self, step: int) -> bool:
        return self._total is not None and step >= self._total - 1

    def _collect(self) -> None:
        """The worst of the last computed step's error rates; nothing is read from the device yet."""
        if self._rates and len(self._rates) == len(self._passes):
            device = self._rates[0].device
            worst = torch.stack([rate.to(device) for rate in self._rates]).max()
            self._worst = worst if self._worst is None else torch.maximum(worst, _FALL * self._worst)
            self._rate = None
        self._rates = []

    def _read(self, worst: Tensor) -> float:
        """The one place that waits for the device: once after a computed step."""
        if self._rate is None:
            if self.group is not None:
                torch.distributed.broadcast(worst, torch.distributed.get_global_rank(self.group, 0), self.group)
            self._rate = float(worst)
        return self._rate

    def _time(self, step: int) -> float:
        return self._times[step] if self._times is not None and step < len(self._times) else float(step)

    def _size(self, step: int) -> float | None:
        """How much of the output of a step goes into the image, if outputs are corrected."""
        if self._sizes is None or not self.settings.correct or (self._length or 0) < _CORRECTED:
            return None
        return self._sizes[step]

    def _observe(self, key: Hashable, form: Hashable, output: Any) -> Any:
        """Learn from a computed output; what the caller is given."""
        assert self._step is not None
        if needs_grad(output):
            self._start_over()  # else the graph would outlive the call
            return output
        known = self._passes.get(key)
        if known is None or known.form != form or not known.fits(output):
            known = self._passes[key] = PassHistory(form, output)
        time = self._time(self._step)
        given = known.corrected(time, self._size(self._step), output)
        rate = known.add(time, output)
        if rate is not None:
            self._rates.append(rate)
        return given
