"""What we recommend for how many steps, and why: the one table behind ``apply(pipe)`` and behind budgets.

Both are forecasts whose settings follow from the run: :class:`Recommended` from its number of steps and its guidance,
:class:`Capped` from its number of steps and the kind of model. The evidence is in docs/results/fidelity.md.
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

# Steps at which none is left out. On emoji-sdxl-4step, made for four, one step left out gives a mean squared error of
# 125 at .758 of the FLOPs, and merging half of the tokens 37 at the same (100 pairs).
FEW = 4


# ---------------------------------------------------------------------------------------------- apply(pipe)
# Tolerances by the least number of steps. The aim is a median of 40 dB, and less than one image of twenty below 32 dB.
# On tuning pairs with 20 steps of emoji-sdxl (24 pairs), .2 computes .515 of them at a median of 42.6 dB and 34.1 dB
# for the worst; .1 computes .58 at 46.0 and 38.6 dB. With 50 steps, .8 computes .28 at 40.3 dB and more (6 pairs), and
# .30 of emoji-flux at 38.6 dB and more (4 pairs). With 8, .1 computes .92 at 49.3 dB, and .2 is too much: .76 at 37.9
# (24 pairs). What other pairs give is in docs/guide/forecast.md.
TOLERANCES: tuple[tuple[int, float], ...] = ((40, 0.8), (16, 0.2), (6, 0.1))
UNKNOWN = 0.05  # where nobody says how many steps there are

# Guidance multiplies what tells its passes apart, and with it what forecasts miss. Tolerances hold up to a scale of 3,
# which is emoji-sdxl's own; beyond, they fall with this power of it. On tuning pairs with 20 steps (20 pairs), .072
# gives a median of 41.3 dB at a scale of 5 and 35.9 dB for the worst, .032 gives 49.4 and 37.0 dB at 7.5. A power of
# 1.5 is not enough with 50 steps: at 7.5, .202 gives 35.4 dB, .161 gives 37.9 and .128 gives 41 dB (6 pairs).
GUIDED, FALL = 3.0, 2.0


@dataclass(frozen=True)
class Recommended(Forecast):
    """The forecast of ``apply(pipe)``: its tolerance follows from the number of steps and the guidance scale."""

    def of_run(self, run: Run) -> Forecast:
        """The settings for a run; a tolerance of 0 where nothing is recommended."""
        if run.length is None:
            return Forecast(_guided(UNKNOWN, run))
        found = Forecast(_guided(next((tolerance for least, tolerance in TOLERANCES if run.length >= least), 0.0), run))
        return found if found.least(run.length) < 1 else Forecast(0.0)

    def why(self, run: Run) -> str:
        """The reason, in one line."""
        if run.length is None:
            return f"recommended where the number of steps is not known: tolerance {_guided(UNKNOWN, run):g}"
        found = self.of_run(run)
        if not found.skips:
            return f"nothing is recommended for {run.length} steps: each differs too much from the last"
        guided = f" with guidance {run.guidance:g}" if run.guidance > GUIDED else ""
        return f"recommended for {run.length} steps{guided}: tolerance {found.tolerance:g}"

    def __repr__(self) -> str:
        return "recommended forecast"

    __str__ = __repr__


def _guided(tolerance: float, run: Run) -> float:
    return round(tolerance * math.pow(min(1.0, GUIDED / max(run.guidance, 1.0)), FALL), 3)


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

    __str__ = __repr__


# How a budget is divided, by kind and least number of steps: the share of steps that is computed at least. A budget
# below that merges at those. With 8 steps, mean squared errors on four tuning pairs are 1.1 (emoji-flux) with two steps
# left out, 7.6 with three and 42 with four; merging a quarter costs 70 (16 other pairs). On emoji-sdxl three cost 75,
# four 200, but merging a quarter 16 and half 44 (100 other pairs). With more steps, each costs less.
FEWEST: dict[Kind, tuple[tuple[int, float], ...]] = {
    "transformer": ((30, 0.25), (14, 0.35), (FEW + 1, 0.5)),
    "unet": ((30, 0.25), (14, 0.35), (FEW + 1, 0.75)),
}
REACH = {"transformer": 0.4, "unet": 0.72}  # share of a step's FLOPs that merging can come down to
_ROUNDING = 1e-9


def computed(cap: float, steps: int, kind: Kind, merges: bool) -> int:
    """How many steps an image may compute within ``cap``; the others are forecast, and merging takes the rest."""
    floor = math.floor(cap * steps + _ROUNDING)
    if not merges:
        return floor
    fewest = next((share for least, share in FEWEST[kind] if steps >= least), None)
    if fewest is None:
        return steps
    reached = math.floor(cap / REACH[kind] * steps + _ROUNDING)
    return max(1, min(steps, reached, max(floor, math.ceil(fewest * steps - _ROUNDING))))
