"""What the fidelity benchmark compares over steps: forecasts, caches of others by their own knobs, and skipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.caches import (
    MAGNITUDES,
    DeepCache,
    DualBlockCache,
    FirstBlockCache,
    MagCache,
    PyramidAttention,
    Repeat,
    SeaCache,
    TaylorSeer,
)
from tomadiff import Forecast, Schedule, ToMA
from tomadiff.evaluation.runs.variants import Around, Variant
from tomadiff.steps.spread import spread

TOLERANCES = (0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.8)
ON_TOP = (0.25, 0.5)  # ratios of merging
EVERY_STEP = Schedule(1, 1)
SHARES = (0.85, 0.7, 0.6, 0.5, 0.4, 0.3)  # of steps that patterns compute


def forecasting(name: str, forecast: Forecast, ratio: float = 0.0) -> Variant:
    """Forecasts alone, or with merging."""
    if not ratio:
        return Variant(name, forecast=forecast)
    return Variant(f"{name} + toma {ratio:.2f}", ToMA(ratio), EVERY_STEP, forecast=forecast)


def tolerances(_: str, steps: int) -> Iterator[Variant]:
    """Forecasts by tolerance."""
    if Forecast(1.0).least(steps) < 1:
        yield from (forecasting(f"forecast {tolerance:g}", Forecast(tolerance)) for tolerance in TOLERANCES)


def fitting(_: str, __: int) -> Iterator[Variant]:
    """Tolerances among which a default is chosen, and patterns with merging for a budget."""
    for tolerance in (0.1, 0.15, 0.2, 0.3):
        yield forecasting(f"forecast {tolerance:g}", Forecast(tolerance))


def mixed(_: str, steps: int) -> Iterator[Variant]:
    """How a budget may be divided between steps and merging."""
    for count in range(int(0.5 * steps), steps + 1, max(1, steps // 8)):
        for ratio in (0.0, 0.25, 0.5, 0.75):
            pattern = Forecast(steps=spread(count, steps)) if count < steps else Forecast(0.0)
            if count < steps or ratio:
                yield forecasting(f"forecast {count} of {steps}", pattern, ratio)


def counts(steps: int) -> list[int]:
    """How many steps patterns compute."""
    return sorted({int(share * steps) for share in SHARES if share * steps >= 1}, reverse=True)


def patterns(_: str, steps: int) -> Iterator[Variant]:
    """Forecasts in fixed patterns."""
    for count in counts(steps):
        yield forecasting(f"forecast {count} of {steps}", Forecast(steps=spread(count, steps)))
    yield from (forecasting(f"forecast every {every}", Forecast(every=every)) for every in (2, 3, 4))


def merged(model: str, steps: int) -> Iterator[Variant]:
    """Patterns with merging on top."""
    for ratio in ON_TOP:
        for count in counts(steps):
            yield forecasting(f"forecast {count} of {steps}", Forecast(steps=spread(count, steps)), ratio)
    for ratio in ON_TOP:
        for one in tolerances(model, steps):
            if one.tolerance in (0.05, 0.1, 0.2):
                assert one.forecast is not None
                yield forecasting(one.name, one.forecast, ratio)


def spreads(_: str, steps: int) -> Iterator[Variant]:
    """How the steps of a pattern are spread."""
    for count in (int(0.7 * steps), int(0.5 * steps)):
        seen = set[tuple[int, ...]]()
        for warm_up in (2, 3, 4, 5):
            for name, times in (("", None), (", even", range(steps))):
                found = spread(count, steps, warm_up, times)
                if found not in seen:
                    seen.add(found)
                    yield forecasting(f"spread {count}, from {warm_up}{name}", Forecast(steps=found))


def repeats(_: str, __: int) -> Iterator[Variant]:
    """Steps are left out, and the last output stands in."""
    for interval, start in ((2, 0.2), (3, 0.2), (4, 0.2), (2, 0.5)):
        yield cached(f"repeat every {interval} from {start:.0%}", Repeat(interval, start))


def swept(model: str, steps: int) -> Iterator[Variant]:
    """Caches of others, each as its authors recommend and by its own knob.

    FasterCache of diffusers 0.42 is not here: it raises on Flux, whose single blocks have no attention of the text.
    """
    if model == "emoji-sdxl":
        yield from (cached(f"DeepCache every {interval}", DeepCache(interval)) for interval in (2, 3, 4, 5))
        yield from (cached(f"PAB every {interval}", PyramidAttention(interval)) for interval in (2, 4))
        return
    before = max(2, round(0.15 * steps))
    for threshold in (0.05, 0.08, 0.12, 0.16, 0.2, 0.3):
        yield cached(f"FirstBlockCache {threshold:g}", FirstBlockCache(threshold))
    for interval in (2, 3, 4, 5):
        yield cached(f"TaylorSeer every {interval}", TaylorSeer(interval, before))
    for interval in (2, 3, 5):
        yield cached(f"TaylorSeer full every {interval}", TaylorSeer(interval, before, lite=False))
    for threshold in (0.03, 0.06, 0.12, 0.24) if MAGNITUDES else ():
        yield cached(f"MagCache {threshold:g}", MagCache(steps, threshold))
    for threshold in (0.1, 0.15, 0.25, 0.4):
        yield cached(f"SeaCache {threshold:g}", SeaCache(threshold))
    yield from (cached(f"PAB every {interval}", PyramidAttention(interval)) for interval in (2, 4))


def dual(_: str, __: int) -> Iterator[Variant]:
    """DBCache of the package cache-dit, which has to be installed."""
    for order in (0, 1):
        for threshold in (0.08, 0.12, 0.2, 0.3):
            series = " TaylorSeer" if order else ""
            yield cached(f"DBCache{series} {threshold:g}", DualBlockCache(threshold, order=order))


def cached(name: str, cache: Around) -> Variant:
    """A cache without merging, under the name and settings of older rows."""
    return Variant(name, ToMA(0.0), EVERY_STEP, cache)


STEP_SETS: dict[str, Callable[[str, int], Iterator[Variant]]] = {
    "tolerances": tolerances,
    "patterns": patterns,
    "merged": merged,
    "spreads": spreads,
    "fitting": fitting,
    "mixed": mixed,
    "repeats": repeats,
    "swept": swept,
    "dual": dual,
}
