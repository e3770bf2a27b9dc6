"""What was timed and counted, read back: speed-ups, predictions of them, and the promises they keep or break."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import compiled, speed, speed_counted, speed_guard
from benchmarks.rows import least, middle, where
from benchmarks.speed import BASELINE, CASES, CONTENDERS, RATIOS, Case, title_of
from benchmarks.speed_counted import LIMIT, Key, traced
from tomadiff.cost import Hardware, Trace
from tomadiff.cost.fit import fitted
from tomadiff.evaluation.runs.rows import Row, read
from tomadiff.evaluation.timing.prediction import Window

FITTED = Case("sdxl", 512)
RIVALS = ("tomesd", "tofu", "tomesd-own", "tofu-own", "todo")

Predict = Callable[[Case, str, float], float]


@dataclass(frozen=True)
class Results:
    """Everything that was measured and counted."""

    timed: list[Row]
    counted: list[Row]
    guarded: list[Row]
    compiled: list[Row]

    @classmethod
    def read(cls, folder: Path) -> Results:
        """From the files of a folder; what was not measured yet is empty."""
        sources = speed, speed_counted, speed_guard, compiled
        return cls(*(read(folder / source.RESULTS.name) for source in sources))

    def speed_up(self, case: Case, method: str, ratio: float) -> float | None:
        """The best round's, over the unmerged model's best of all turns; ``None`` if it was not timed."""
        own = where(self.timed, **case.columns, method=method, ratio=f"{ratio:g}")
        return self.unmerged(case) / least(own, "window_s") if own else None

    def unmerged(self, case: Case) -> float:
        """Seconds of a step without merging."""
        return least(where(self.timed, **case.columns), "unmerged_s")

    def count(self, case: Case, method: str, ratio: float, column: str) -> float | None:
        """A counted number."""
        own = where(self.counted, **case.columns, method=method, ratio=f"{ratio:g}")
        return float(own[0][column]) if own else None

    def limit(self, case: Case, ratio: float) -> float | None:
        """The speed-up if time were FLOPs, and merging free."""
        share = self.count(case, LIMIT, ratio, "flop_share")
        return None if share is None else 1 / share

    @property
    def cases(self) -> list[Case]:
        """Those that were timed."""
        return [case for case in CASES if where(self.timed, **case.columns)]


# ---------------------------------------------------------------------------------------------- predictions
def samples(results: Results, case: Case) -> Iterator[tuple[Trace, float]]:
    """Every timed kind of step of ``case``, with what it does, and after each the unmerged one it is compared with."""
    own = where(results.timed, **case.columns)
    unmerged = _only(traced((case, BASELINE, 0.0))), results.unmerged(case)
    yield unmerged
    for name, ratio in sorted({(row["method"], float(row["ratio"])) for row in own}):
        rows = where(own, method=name, ratio=f"{ratio:g}")
        for part, (_, found) in traced((case, name, ratio)).parts.items():
            yield found, least(rows, f"{part}_s")
            yield unmerged


def _only(window: Window) -> Trace:
    ((_, found),) = window.parts.values()
    return found


def fitted_machine(results: Results, folder: Path) -> Hardware | None:
    """The machine as it was measured before the timed run, fitted to its steps at 512²."""
    known = read(folder / "hardware.csv")
    if not known or not where(results.timed, **FITTED.columns):
        return None
    return fitted(Hardware.from_row(known[-1]), list(samples(results, FITTED)))


def predictor(machine: Hardware) -> Predict:
    """Speed-ups that ``machine`` should show."""

    def predict(case: Case, name: str, ratio: float) -> float:
        return traced((case, BASELINE, 0.0)).seconds(machine) / traced((case, name, ratio)).seconds(machine)

    return predict


def predictions(results: Results, predict: Predict) -> list[Row]:
    """Predicted against measured, for all that was timed."""
    found = []
    for case, name, ratio in _timed_keys(results):
        measured, expected = results.speed_up(case, name, ratio), predict(case, name, ratio)
        assert measured is not None
        found.append(
            {
                **case.columns,
                "method": name,
                "ratio": f"{ratio:g}",
                "measured": f"{measured:.4f}",
                "predicted": f"{expected:.4f}",
                "error": f"{expected / measured - 1:.4f}",
                "fitted_here": str(case == FITTED).lower(),
            }
        )
    return found


def _timed_keys(results: Results) -> Iterator[Key]:
    for case in results.cases:
        for name, known in CONTENDERS.items():
            yield from ((case, name, ratio) for ratio in known if results.speed_up(case, name, ratio))


# ---------------------------------------------------------------------------------------------- promises
@dataclass(frozen=True)
class Promise:
    """A number that was promised to be at least, or at most, another."""

    text: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def kept(self) -> bool:
        """Whether it is."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        sign, word = ("≤", "≥")[not self.at_most], "kept" if self.kept else "BROKEN"
        return f"{self.text}: {self.value:.3f} {sign} {self.bound:.3f}: {word}"


_SDXL_512, _SDXL, _FLUX, _SD3 = CASES
_LEAST = {(_SDXL, 0.25): 1.2, (_SDXL, 0.5): 1.58, (_SDXL, 0.75): 2.15, (_FLUX, 0.5): 1.85, (_FLUX, 0.75): 3.0}


def promises(results: Results, predicted: Sequence[Row]) -> list[Promise]:
    """All that can be checked with what was measured."""
    found = [*_fast_enough(results), *_faster_than_others(results), *_cheap(results)]
    if predicted:
        worst = max(predicted, key=lambda row: abs(float(row["error"])))
        what = f"worst prediction ({worst['model']} {worst['size']}² {worst['method']} {worst['ratio']})"
        found.append(Promise(what, abs(float(worst["error"])), 0.08, at_most=True))
    return found


def _fast_enough(results: Results) -> Iterator[Promise]:
    for (case, ratio), bound in _LEAST.items():
        own = results.speed_up(case, "toma-paper", ratio)
        if own is not None:
            yield Promise(f"toma-paper on {case.title} at {ratio:g}", own, bound)
        default = results.speed_up(case, "toma", ratio)
        if own is not None and default is not None:
            yield Promise(f"toma on {case.title} at {ratio:g}, share of toma-paper", default / own, 0.96)
    for ratio in RATIOS:
        own, limit = results.speed_up(_SDXL_512, "toma-paper", ratio), results.limit(_SDXL_512, ratio)
        if own is not None and limit is not None:
            yield Promise(f"toma-paper on {_SDXL_512.title} at {ratio:g}, share of the limit", own / limit, 0.95)


def _faster_than_others(results: Results) -> Iterator[Promise]:
    for case in results.cases:
        for ratio in RATIOS:
            own, bound = results.speed_up(case, "toma-paper", ratio), results.speed_up(case, "bound", ratio)
            if own is not None and bound is not None:
                yield Promise(f"toma-paper on {case.title} at {ratio:g}, share of Bound", own / bound, 0.97)
            for rival in RIVALS:
                other = results.speed_up(case, rival, ratio)
                if own is not None and other is not None:
                    yield Promise(
                        f"toma-paper against {title_of(CONTENDERS[rival])} on {case.title} at {ratio:g}",
                        own,
                        other,
                    )


def _cheap(results: Results) -> Iterator[Promise]:
    own = where(results.timed, **_SDXL.columns, method="toma-paper", ratio="0.5")
    if own:
        planning = 1 - middle(own, "plain_s") / middle(own, "window_s")
        yield Promise(f"planning's share of a window on {_SDXL.title} at 0.5", planning, 0.01, at_most=True)
    for column, what, bound in (("block_peak_mib", "inside blocks", 0.75), ("peak_mib", "in all", 1.0)):
        after, before = (results.count(_SDXL, *which, column) for which in (("toma-paper", 0.5), (BASELINE, 0.0)))
        if after is not None and before is not None:
            yield Promise(f"live bytes {what} on {_SDXL.title} at 0.5", after / before, bound, at_most=True)
