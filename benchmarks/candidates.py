"""What the fidelity benchmark compares: settings by name, in sets, each for one comparison."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from hashlib import sha1
from typing import Any

from benchmarks.caches import DeepCache, DualBlockCache, FirstBlockCache, SeaCache, TaylorSeer
from benchmarks.step_candidates import STEP_SETS
from tomadiff import Schedule, Stripes, Tiles, ToDo, ToFu, ToMA, ToMeSD, embedded
from tomadiff.cost.budget import RatioChoice, choices_of
from tomadiff.evaluation.runs.variants import Around, Variant

RATIOS = (0.25, 0.5, 0.75)
FEW_STEPS = 10  # below, no plan is kept
DEFAULT = "toma"
LEVELS = {"emoji-sdxl": 2, "emoji-flux": 1}  # grids that attention sees
PARTS = {"emoji-sdxl": 16, "emoji-flux": 64}  # what tiles of 16 tokens can keep; with a shared quota, what budgets try
EVERY_STEP = Schedule(1, 1)
EVERYWHERE = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True}
STARTS = (0.0, 0.05, 0.1, 0.2, 0.3)
WINDOW_RATIOS = (0.5, 0.75)
BUDGETS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)  # of the curve
BESIDE_CACHES = {"emoji-sdxl": (0.25, 0.5), "emoji-flux": (0.5,)}  # ratios; at .25, Flux merges single blocks alone
TILES_OF_ONE_FRAME = ", frames=1)"  # how tiles are written now; rows are older than tiles over frames
SAME_COST = 0.001  # shares of FLOPs nearer than this are the same


@dataclass(frozen=True)
class Bench:
    """What images are generated with.

    Attributes:
        model: name of the embedded pipeline.
        steps: of an image.
        cost: FLOPs of a candidate as a share of the unmerged model's, known without generating.
        denoising: share of an unmerged image's FLOPs that the denoiser has.
    """

    model: str
    steps: int
    cost: Callable[[Variant], float]
    denoising: Callable[[], float] = lambda: 1.0

    @property
    def base(self) -> str:
        """The pipeline, without a LoRA for few steps."""
        return embedded.base(self.model)


def digest(candidate: Variant) -> str:
    """Changes with every setting, so that images of other settings are not taken for a candidate's.

    What is nothing, zero or off is left out: a setting that does not exist yet is as good as one that is off.
    """
    parts = [candidate.method, candidate.schedule, candidate.around]
    parts += [] if candidate.forecast is None else [candidate.forecast]  # rows are older than forecasts
    written = repr([_settings(part) for part in parts]).replace(TILES_OF_ONE_FRAME, ")")
    return sha1(written.encode()).hexdigest()[:8]


def _settings(part: object) -> object:
    if not is_dataclass(part):
        return part
    settings = {one.name: value for one in fields(part) if (value := getattr(part, one.name))}
    if isinstance(part, Schedule):
        settings["reuse_every"] = 1  # a setting that there was when rows were generated; all but RETIRED had it off
    return type(part).__name__, settings


def adapts(candidate: Variant) -> bool:
    """Whether what it costs is a matter of the image, and is counted for some."""
    return isinstance(candidate.around, FirstBlockCache | SeaCache | DualBlockCache)


# ---------------------------------------------------------------------------------------------- the default
def default_at(ratio: float, start: float | None = None, change: str = "", **settings: Any) -> Variant:
    """What users get, but for ``settings`` and the share of the run that stays unmerged."""
    method = ToMA(ratio, **settings)
    if start is None or start == method.schedule.start:
        return Variant.of(f"{DEFAULT}{change}", method)
    return Variant.of(f"{DEFAULT}{change}, from {start:.0%}", method, replace(method.schedule, start=start))


def within(budget: float, cost: Callable[[Variant], float], model: str) -> Variant | None:
    """The default at no more than a share of the FLOPs: the dearest of :func:`ladder` that is; ``None`` if none is."""
    choices = ladder(model)
    place = bisect_left(choices, True, key=lambda one: cost(one) <= budget + SAME_COST)  # costs fall with the ratio
    return choices[place] if place < len(choices) else None


def ladder(model: str) -> list[Variant]:
    """Every setting of the default that ``apply(pipe, flops=…)`` may choose, the dearest first."""
    base = embedded.base(model)
    ratios = [part / PARTS[base] for part in range(1, PARTS[base])]
    return [at_choice(choice) for choice in choices_of(ratios, LEVELS[base])]


def at_choice(choice: RatioChoice) -> Variant:
    """The default, merging so much."""
    even = default_at(choice.ratio)
    if choice.finest == choice.ratio:
        return even
    return replace(even, name=f"{DEFAULT} {choice.ratio:.2f}/{choice.finest:.2f}", schedule=choice.on(even.schedule))


def defaults(_: Bench) -> Iterator[Variant]:
    """What users get, by ratio."""
    yield from (default_at(ratio) for ratio in RATIOS)


def matched(bench: Bench) -> Iterator[Variant]:
    """The default at the cost of every method with a ratio to choose; against ToDo stands a default that costs less."""
    others = (one for one in baselines(bench) if not isinstance(one.method, ToDo))
    rivals = {bench.cost(rival) for rival in (*paper(bench), *others)}
    yield from filter(None, (within(budget, bench.cost, bench.model) for budget in sorted(rivals)))


def curve(bench: Bench) -> Iterator[Variant]:
    """The default at the cost of baselines as they come, and at round ones, for the chart of all."""
    rivals = {bench.cost(rival) for rival in narrow(bench)}
    yield from filter(None, (within(budget, bench.cost, bench.model) for budget in sorted({*rivals, *BUDGETS})))


# ---------------------------------------------------------------------------------------------- the paper's, and knobs
def as_published(bench: Bench, ratio: float, change: str = "", **settings: Any) -> Variant:
    """The paper's settings but for some; with few steps, plans are new at every one, for all alike."""
    method = replace(ToMA.paper(ratio), **settings)
    return Variant.of(f"toma-paper{change}", method, EVERY_STEP if bench.steps < FEW_STEPS else None)


def paper(bench: Bench) -> Iterator[Variant]:
    """The paper's settings by ratio."""
    yield from (as_published(bench, ratio) for ratio in RATIOS)


def schedules(bench: Bench) -> Iterator[Variant]:
    """The paper's intervals as they are written, and scaled from its 50 steps to fewer."""
    scaled = Schedule(*(max(1, round(interval * bench.steps / 50)) for interval in (10, 5)))
    for name, schedule in (("10/5", Schedule(10, 5)), ("scaled", scaled)):
        yield from (Variant.of(f"toma-paper, {name}", ToMA.paper(ratio), schedule) for ratio in RATIOS)


def knobs(bench: Bench) -> Iterator[Variant]:
    """One setting changed at a time, from the paper's and from the default, at ratio 0.5."""
    old = ToMA.paper(0.5)
    change, own = partial(as_published, bench, 0.5), partial(default_at, 0.5)
    yield change()
    for selector in ("random", "strided", "kmeans"):
        yield change(f", {selector} destinations", selector=selector)
    yield change(", pseudo-inverse", unmerge="pseudo-inverse")
    yield change(", least squares", unmerge="least-squares")
    yield change(", once per block", span="block")
    yield change(", tiles of 8", regions=Tiles(8))
    yield change(", stripes", regions=Stripes(16))
    yield change(", only attention", merge_cross_attention=False, merge_feed_forward=False)
    if bench.base == "emoji-sdxl":  # Flux has one level, and no cross-attention
        yield change(", only cross-attention", merge_attention=False, merge_feed_forward=False)
        yield change(", only level 0", levels=(0,))
    yield change(", only feed-forward", merge_attention=False, merge_cross_attention=False)
    yield Variant.of("toma-paper, every step", old, EVERY_STEP)
    yield Variant.of("toma-paper, per block, every step", replace(old, scope="block"), EVERY_STEP)
    fitted = replace(old, scope="block", unmerge="least-squares")
    yield Variant.of("least squares, per block, every step", fitted, EVERY_STEP)
    yield Variant.of("least squares, per block, every 3", fitted, Schedule(3, 3))
    yield Variant.of("least squares, per block, shared quota", replace(fitted, quota="shared"), EVERY_STEP)
    yield own()
    for start in (0.0, 0.1, 0.2):
        yield own(start)
    if bench.base == "emoji-flux":  # where text and image attend to each other
        yield own(change=", no block skipped", skip=0)
        yield own(change=", joint blocks skipped", skip=4)
    yield own(change=", random destinations", selector="random")
    yield own(change=", shared quota", quota="shared")
    yield own(change=", plans by level", scope="level")
    yield own(change=", tiles of 8", regions=Tiles(8))
    yield own(change=", tiles of 2", regions=Tiles(2))
    yield from _rescheduled(LEVELS[bench.base])


def _rescheduled(levels: int) -> Iterator[Variant]:
    """The default with other schedules."""
    usual, method = default_at(0.5).schedule, default_at(0.5).method
    others = {
        "every 2": replace(usual, destinations_every=2, weights_every=2),
    }
    if levels > 1:
        others["level 0 .25, level 1 .75"] = replace(usual, ratio_at_level={0: 0.25, 1: 0.75})
    yield from (Variant.of(f"{DEFAULT}, {name}", method, schedule) for name, schedule in others.items())


def windows(_: Bench) -> Iterator[Variant]:
    """How late merging begins against how much merges then."""
    for ratio in WINDOW_RATIOS:
        for start in STARTS:
            yield default_at(ratio, start)


def baselines(_: Bench) -> Iterator[Variant]:
    """ToMeSD and ToFu on every op, as ToMA, and ToDo."""
    for ratio in RATIOS:
        yield Variant.of("tomesd-all", ToMeSD(ratio, **EVERYWHERE))
        yield Variant.of("tofu-all", ToFu(ratio, **EVERYWHERE))
    yield Variant.of("todo", ToDo())


def narrow(_: Bench) -> Iterator[Variant]:
    """ToMeSD and ToFu as they come: self-attention at the finest level."""
    for ratio in RATIOS:
        yield Variant.of("tomesd", ToMeSD(ratio))
        yield Variant.of("tofu", ToFu(ratio))


def selectors(bench: Bench) -> Iterator[Variant]:
    """What facility location is worth, with all else as in the paper."""
    for ratio in RATIOS:
        for selector in ("random", "strided"):  # the paper's own, facility location, is in its set
            yield as_published(bench, ratio, f", {selector} destinations", selector=selector)


# ---------------------------------------------------------------------------------------------- caches
def caches(bench: Bench) -> Iterator[Variant]:
    """Caches of others, alone and on top of merging."""
    for name, cache in foreign_caches(bench).items():
        yield Variant(name, ToMA(0.0), EVERY_STEP, cache)
        for ratio in BESIDE_CACHES[bench.base]:
            yield replace(default_at(ratio), name=f"{DEFAULT} + {name} {ratio:.2f}", around=cache)


def foreign_caches(bench: Bench) -> dict[str, Around]:
    """Those that work on the model, by name."""
    if bench.base == "emoji-sdxl":
        return {f"DeepCache every {interval}": DeepCache(interval) for interval in (2, 3, 5)}
    before = max(2, round(0.15 * bench.steps))  # two full steps at least, to extrapolate from
    return {
        **{
            f"FirstBlockCache {threshold:g}": FirstBlockCache(threshold) for threshold in (0.1, 0.2)
        },  # .05 skips nothing
        **{f"TaylorSeer every {interval}": TaylorSeer(interval, before) for interval in (2, 3, 5)},
    }


def _by_steps(make: Callable[[str, int], Iterator[Variant]]) -> Callable[[Bench], Iterator[Variant]]:
    return lambda bench: make(bench.base, bench.steps)


TUNING = ("knobs", "windows", "spreads", "fitting", "mixed")
"""Sets that settings are chosen by: generated from other prompts and seeds than those that must hold."""

LADDERS = ("matched", "curve")
"""Sets that follow from costs."""

SETS = {
    "paper": paper,
    "schedules": schedules,
    "defaults": defaults,
    "matched": matched,
    "curve": curve,
    "baselines": baselines,
    "narrow": narrow,
    "selectors": selectors,
    "knobs": knobs,
    "windows": windows,
    "caches": caches,
    **{name: _by_steps(make) for name, make in STEP_SETS.items()},
}

RETIRED = {
    "reuse every 2 from 0%": "c1f5cf8f",
    "reuse every 2 from 20%": "4ab2a6c1",
    "reuse every 3 from 0%": "a2f557d3",
    "reuse every 3 from 20%": "a6fbf6be",
}
"""Caches that were generated and are no more, with their digests: ops added again what they gave last."""


def known(model: str, steps: int) -> dict[str, str]:
    """The digest of every candidate there may be, by name."""
    bench = Bench(model, steps, lambda _: 1.0)
    sets = (one for name, made in SETS.items() if name not in LADDERS for one in made(bench))
    return RETIRED | {one.name: digest(one) for one in (*ladder(model), *sets)}
