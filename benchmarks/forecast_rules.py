"""Rules for forecasting denoising steps that were tried beside Forecast's, to compare with it on the same images.

The first rule of all, ``Tried(0.1)``, keeps the last two outputs and takes the better of two forecasts: the last output
(order 0) and the line through both (order 1). Every setting changes one thing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Compute = Callable[[], Tensor]


@dataclass(frozen=True)
class Tried:
    """A rule of one pass.

    Attributes:
        tolerance: of the estimated error since the last computed step.
        forecast: the better of the orders 0 and 1, one of them, or their blend as in :mod:`tomadiff.steps.history`.
        growth: how the error grows with the distance: relative to the last spacing (``d``, ``d(d+1)/2``), as the
            remainder of an interpolation in absolute time, or in proportion to the distance.
        by_sample: the worst sample decides, instead of the norm over all.
        fall: an error rate falls at most by this factor from one computed step to the next.
        recursive: from the rate that was used there; else from the one that was measured there.
        first: steps that are computed first.
        most: forecast steps in a row.
        weight: of an error: none, the size of the sampler's step, or the noise level.
    """

    tolerance: float = 0.1
    forecast: Literal["orders", "line", "last", "blend"] = "orders"
    growth: Literal["relative", "absolute", "distance"] = "relative"
    by_sample: bool = False
    fall: float = 0.5
    first: int = 3
    most: int = 3
    weight: Literal["", "step", "noise"] = ""
    recursive: bool = True

    def begin(self, times: list[float]) -> Run:
        """A new image."""
        return Run(self, times)


class Run:
    """The state of one image."""

    def __init__(self, rule: Tried, times: list[float]) -> None:
        self.rule, self.times = rule, times
        self.kept: list[tuple[float, Tensor]] = []
        self.rates: dict[str, float] = {}
        self.measured: dict[str, float] = {}  # rates of the last computed step, without memory
        self.share: Tensor | None = None
        self.since, self.row = 0.0, 0
        self.computed: list[int] = []

    def call(self, step: int, compute: Compute) -> Tensor:
        """The output of a step."""
        forecasts = self._forecasts(self.times[step]) if self.kept else {}
        name = min(self._known(forecasts), key=lambda one: self.rates[one] * forecasts[one][1], default=None)
        if name is not None and self._may_skip(step):
            error = self.rates[name] * forecasts[name][1] * self._weight(step)
            if self.since + error < self.rule.tolerance:
                self.since, self.row = self.since + error, self.row + 1
                return forecasts[name][0]
        output = compute()
        self._observe(step, output, forecasts)
        return output

    def _known(self, forecasts: dict[str, tuple[Tensor, float]]) -> list[str]:
        return [name for name in forecasts if name in self.rates]

    def _may_skip(self, step: int) -> bool:
        return self.rule.first <= step < len(self.times) - 1 and self.row < self.rule.most

    def _forecasts(self, time: float) -> dict[str, tuple[Tensor, float]]:
        """Forecasts by name, with how far their errors grow."""
        (then, last), kind = self.kept[-1], self.rule.forecast
        distance = abs(time - then)
        if len(self.kept) < 2:
            return {"last": (last, distance)} if kind in ("orders", "last") else {}
        before, older = self.kept[-2]
        scale, spacing = (time - then) / (then - before), abs(then - before)
        order0, order1 = self._growth(distance, spacing)
        found = {"last": (last, order0)} if kind in ("orders", "last") else {}
        if kind in ("orders", "line"):
            found["line"] = (last + scale * (last - older), order1)
        if kind == "blend" and self.share is not None:
            found["blend"] = (last + _spread(self.share, last) * scale * (last - older), order1)
        return found

    def _growth(self, distance: float, spacing: float) -> tuple[float, float]:
        if self.rule.growth == "distance":
            return distance, distance
        if self.rule.growth == "absolute":
            return distance, distance * (distance + spacing)
        ratio = distance / spacing
        return ratio, ratio * (ratio + 1) / 2

    def _weight(self, step: int) -> float:
        if self.rule.weight == "noise":
            return self.times[step]
        if self.rule.weight == "step":
            return (self.times[step] - self.times[step + 1]) * len(self.times)
        return 1.0

    def _observe(self, step: int, output: Tensor, forecasts: dict[str, tuple[Tensor, float]]) -> None:
        for name, (forecast, growth) in forecasts.items():
            rate = _relative(output - forecast, output, self.rule.by_sample) / growth
            before = self.rates if self.rule.recursive else self.measured
            self.rates[name] = max(rate, self.rule.fall * before.get(name, 0.0))
            self.measured[name] = rate
        if len(self.kept) == 2:
            (before, older), (then, last) = self.kept
            trend = (last - older) * ((self.times[step] - then) / (then - before))
            self.share = (_dot(output - last, trend) / _dot(trend, trend).clamp_min(1e-20)).clamp(0, 1.5)
        self.kept = [*self.kept[-1:], (self.times[step], output)]
        self.since, self.row = 0.0, 0
        self.computed.append(step)


def _relative(error: Tensor, output: Tensor, by_sample: bool) -> float:
    if not by_sample:
        return float(error.norm() / output.norm())
    return float((_dot(error, error) / _dot(output, output)).sqrt().max())


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).flatten(1).sum(1)


def _spread(numbers: Tensor, like: Tensor) -> Tensor:
    return torch.reshape(numbers, (-1, *[1] * (like.dim() - 1)))
