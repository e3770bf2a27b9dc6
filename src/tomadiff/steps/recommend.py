"""What we recommend for how many steps, and why: the one table behind ``apply(pipe)`` and behind budgets.

Both are forecasts whose settings follow from the run: :class:`Recommended` from its number of steps, :class:`Capped`
from its number of steps and the kind of model. The evidence is in docs/results/fidelity.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tomadiff.errors import SettingError
from tomadiff.steps.forecast import Forecast, Share
from tomadiff.steps.run import Run
from tomadiff.steps.spread import spread

Kind = Literal["unet", "transformer"]

FEW = 4  # steps: nothing is known yet about models that were made for so few
MIDDLE = 14  # steps: below, a UNet's outputs change too much from one to the next to leave out many


# ---------------------------------------------------------------------------------------------- apply(pipe)
# Tolerances by the least number of steps, chosen on tuning pairs of both embedded pipelines: the largest at which the
# median stays above 40 dB and one image of twenty may fall below 32 dB.
TOLERANCES: tuple[tuple[int, float], ...] = ((30, 0.2), (14, 0.1), (6, 0.1))
UNKNOWN = 0.05  # where nobody says how many steps there are


@dataclass(frozen=True)
class Recommended(Forecast):
    """The forecast of ``apply(pipe)``: its tolerance follows from the number of steps."""

    def of_run(self, run: Run) -> Forecast:
        """The settings for a run; a tolerance of 0 where nothing is recommended."""
        if run.length is None:
            return Forecast(UNKNOWN)
        found = Forecast(next((tolerance for least, tolerance in TOLERANCES if run.length >= least), 0.0))
        return found if found.least(run.length) < 1 else Forecast(0.0)

    def why(self, run: Run) -> str:
        """The reason, in one line."""
        if run.length is None:
            return f"recommended where the number of steps is not known: tolerance {UNKNOWN:g}"
        found = self.of_run(run)
        if not found.skips:
            return f"nothing is recommended for {run.length} steps: each differs too much from the last"
        return f"recommended for {run.length} steps: tolerance {found.tolerance:g}"

    def __repr__(self) -> str:
        return "recommended forecast"


# ---------------------------------------------------------------------------------------------- apply(pipe, flops=…)
@dataclass(frozen=True)
class Capped(Forecast):
    """The forecast of ``apply(pipe, flops=…)``: how many steps are computed follows from the run and the cap alone.

    Attributes:
        cap: share of the FLOPs (or of the time) that an image may take.
        kind: of the model.
        merges: whether tokens can be merged too.
        asked: the budget in the user's words.
    """

    cap: Share = 1.0
    kind: Kind = "transformer"
    merges: bool = True
    asked: str = ""

    def changed(self, cap: float, asked: str) -> Capped:
        """The same for another budget."""
        return replace(self, cap=cap, asked=asked)

    def of_run(self, run: Run) -> Forecast:
        """The steps of a run that are computed."""
        if run.length is None or (run.noisy and self.merges):
            return Forecast(0.0)
        count = computed(self.cap, run.length, self.kind, self.merges)
        if count < 1 or run.noisy:
            raise SettingError(f"{self.asked} is out of reach: {self._hint(run)}")
        if count == run.length:
            return Forecast(0.0)
        return Forecast(steps=tuple(run.first + step for step in spread(count, run.length)))

    def _hint(self, run: Run) -> str:
        if run.noisy:
            return "the sampler adds noise that no forecast foresees, and tokens of this model cannot be merged."
        return f"{run.length} steps cannot be cut to that share. Give a larger budget, or more steps."

    def why(self, run: Run) -> str:
        """The reason, in one line; none if the budget was taken back."""
        if not self.asked:
            return ""
        if run.length is None:
            return f"{self.asked}: the number of steps is not known, so none is forecast"
        if run.noisy:
            return f"{self.asked}: the sampler adds noise that no forecast foresees, so none is made"
        count = computed(self.cap, run.length, self.kind, self.merges)
        return f"{self.asked}: {count} of {run.length} steps of a {self.kind} are computed"

    def __repr__(self) -> str:
        return f"forecast for {self.asked}"


# How much of a budget merging takes, by kind and least number of steps: the share of its FLOPs that a computed step
# keeps. 1 leaves all to forecasts.
MERGED: dict[Kind, tuple[tuple[int, float], ...]] = {
    "transformer": ((FEW + 1, 1.0), (0, 0.0)),
    "unet": ((MIDDLE, 1.0), (FEW + 1, 0.85), (0, 0.0)),
}
FEWEST = {"transformer": 0.3, "unet": 0.35}  # shares of steps; for less, computed steps merge too
REACH = {"transformer": 0.4, "unet": 0.72}  # share of a step's FLOPs that merging can come down to


def computed(cap: float, steps: int, kind: Kind, merges: bool) -> int:
    """How many steps an image may compute within ``cap``; the others are forecast, and merging takes the rest."""
    if not merges:
        return math.floor(cap * steps + 1e-9)
    kept = next(share for least, share in MERGED[kind] if steps >= least)
    if kept == 0:
        return steps
    count = max(cap / kept, FEWEST[kind]) * steps
    return max(1, min(steps, math.floor(count + 1e-9), math.floor(cap / REACH[kind] * steps + 1e-9)))
