"""What the fidelity benchmark compares: settings by name, in sets that answer one question each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from hashlib import sha1
from itertools import chain
from typing import Any

from benchmarks.caches import DeepCache, FirstBlockCache, TaylorSeer
from tomadiff import Schedule, Stripes, Tiles, ToDo, ToFu, ToMA, ToMeSD
from tomadiff.evaluate.trials import Around, Candidate

RATIOS = (0.25, 0.5, 0.75)
FEW_STEPS = 10  # below, no plan is kept
OURS = "ours"
SIXTEENTHS = tuple(count / 16 for count in range(1, 16))  # what tiles of 16 tokens can keep
EVERY_STEP = Schedule(1, 1)
EVERYWHERE = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True}
STARTS = {0.2: 0.75, 0.1: 0.875, 0.0: 0.9375}  # where our window begins, up to which ratio; the next if a budget asks
START = 0.2
BUDGETS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)  # of the curve


@dataclass(frozen=True)
class Bench:
    """What is drawn on.

    Attributes:
        model: name of the embedded pipeline.
        steps: of a picture.
        cost: operations of a candidate as a share of the unmerged model's, known without drawing.
    """

    model: str
    steps: int
    cost: Callable[[Candidate], float]


def digest(candidate: Candidate) -> str:
    """Changes with every setting, so that pictures of other settings are not taken for a candidate's.

    What is nothing, zero or off is left out: a setting that does not exist yet is as good as one that is off.
    """
    parts = (candidate.method, candidate.schedule, candidate.around)
    return sha1(repr([_settings(part) for part in parts]).encode()).hexdigest()[:8]


def _settings(part: object) -> object:
    if not is_dataclass(part):
        return part
    return type(part).__name__, {one.name: value for one in fields(part) if (value := getattr(part, one.name))}


def adapts(candidate: Candidate) -> bool:
    """Whether what it costs is a matter of the picture."""
    return isinstance(candidate.around, FirstBlockCache) or getattr(candidate.method, "coverage", None) is not None


# ---------------------------------------------------------------------------------------------- ours
def best(ratio: float) -> ToMA:
    """Per block, fitted to the tokens at hand."""
    return ToMA(ratio, scope="block", unmerge="least-squares")


def window(start: float) -> Schedule:
    """New plans at every step from a share of the run on."""
    return replace(EVERY_STEP, start=start)


def our(ratio: float, start: float = START) -> Candidate:
    """Our settings by the two numbers that are left to choose."""
    return Candidate.of(f"{OURS}, from {start:.0%}", best(ratio), window(start))


def within(budget: float, cost: Callable[[Candidate], float]) -> Candidate | None:
    """Ours at no more than a share of the operations: the first of :func:`ladder`; ``None`` if none is."""
    for start in STARTS:
        rungs = _rungs(start)
        place = bisect_left(rungs, True, key=lambda one: cost(one) <= budget)  # costs fall with the ratio
        if place < len(rungs):
            return rungs[place]
    return None


def ladder() -> Iterator[Candidate]:
    """Every setting of ours that a budget may choose, the dearest of a window first."""
    yield from chain.from_iterable(map(_rungs, STARTS))


def _rungs(start: float) -> list[Candidate]:
    return [our(ratio, start) for ratio in SIXTEENTHS if ratio <= STARTS[start]]


def ours(bench: Bench) -> Iterator[Candidate]:
    """Our defaults by ratio, and at the cost of everyone they are compared with."""
    yield from (our(ratio) for ratio in RATIOS)
    rivals = {bench.cost(rival) for rival in (*paper(bench), *peers(bench))}
    yield from filter(None, (within(budget, bench.cost) for budget in sorted({*rivals, *BUDGETS})))


# ---------------------------------------------------------------------------------------------- the paper's, and knobs
def as_published(bench: Bench, ratio: float, change: str = "", **settings: Any) -> Candidate:
    """The paper's settings but for some; with few steps, plans are new at every one, for all alike."""
    method = replace(ToMA.paper(ratio), **settings)
    return Candidate.of(f"paper{change}", method, EVERY_STEP if bench.steps < FEW_STEPS else None)


def paper(bench: Bench) -> Iterator[Candidate]:
    """The paper's settings by ratio."""
    yield from (as_published(bench, ratio) for ratio in RATIOS)


def knobs(bench: Bench) -> Iterator[Candidate]:
    """One setting changed at a time, from the paper's and from the best found, at ratio 0.5."""
    old, new = ToMA.paper(0.5), best(0.5)
    fresh = replace(old, scope="block")
    change = partial(as_published, bench, 0.5)
    yield change()
    for selector in ("random", "strided", "kmeans"):
        yield change(f", {selector} destinations", selector=selector)
    yield change(", temperature .05", temperature=0.05)
    yield change(", temperature .1", temperature=0.1)
    yield change(", pseudo-inverse", unmerge="pseudo-inverse")
    yield change(", once per block", span="block")
    yield change(", tiles of 8", regions=Tiles(8))
    yield change(", tiles of 2", regions=Tiles(2))
    yield change(", stripes", regions=Stripes(16))
    yield Candidate.of("paper, every step", old, EVERY_STEP)
    yield Candidate.of("paper, per stack, every step", replace(old, scope="stack"), EVERY_STEP)
    yield Candidate.of("paper, per block, every step", fresh, EVERY_STEP)
    yield change(", least squares", unmerge="least-squares")
    yield Candidate.of("least squares, every step", replace(old, unmerge="least-squares"), EVERY_STEP)
    yield Candidate.of("least squares, per block, every 5", new, Schedule(5, 5))
    yield Candidate.of("least squares, per block, every 3", new, Schedule(3, 3))
    yield Candidate.of("least squares, per block, 3 and 1", new, Schedule(3, 1))
    yield Candidate.of("least squares, per block, every 2", new, Schedule(2, 2))
    yield Candidate.of("least squares, per block, every step", new, EVERY_STEP)
    yield Candidate.of("least squares, per block, tiles of 8", replace(new, regions=Tiles(8)), EVERY_STEP)
    yield change(", only attention", merge_cross_attention=False, merge_feed_forward=False)
    yield change(", only cross-attention", merge_attention=False, merge_feed_forward=False)
    yield change(", only feed-forward", merge_attention=False, merge_cross_attention=False)
    yield change(", only level 0", levels=(0,))
    for start in (0.1, 0.2, 0.3, 0.4):
        yield our(0.5, start)
    yield Candidate.of(f"{OURS}, from 0% until 80%", new, replace(EVERY_STEP, stop=0.8))
    yield Candidate.of(
        f"{OURS}, ramp .25 to .75", new, Schedule.ramp(0.25, 0.75, destinations_every=1, weights_every=1)
    )
    sparing = {"feed_forward": 0.25}
    yield Candidate.of(f"{OURS}, from 0%, feed-forward .25", new, replace(EVERY_STEP, ratio_at_op=sparing))
    yield Candidate.of(f"{OURS}, from 0%, coverage .95", replace(new, coverage=0.95), EVERY_STEP)


def windows(_: Bench) -> Iterator[Candidate]:
    """How late merging begins against how much merges then: a choice of both for every cost."""
    for ratio in (0.5, 0.625, 0.75, 0.875):
        for start in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
            yield our(ratio, start)


def peers(_: Bench) -> Iterator[Candidate]:
    """ToMeSD and ToFu as they come and on every op, ToDo."""
    for ratio in RATIOS:
        yield Candidate.of("tomesd", ToMeSD(ratio))
        yield Candidate.of("tomesd, everywhere", ToMeSD(ratio, **EVERYWHERE))
        yield Candidate.of("tofu", ToFu(ratio))
        yield Candidate.of("tofu, everywhere", ToFu(ratio, **EVERYWHERE))
    yield Candidate.of("todo", ToDo())


def selectors(bench: Bench) -> Iterator[Candidate]:
    """What facility location is worth, with all else as in the paper."""
    for ratio in RATIOS:
        for selector in ("random", "strided", "kmeans"):  # the paper's own, facility location, is in its set
            yield as_published(bench, ratio, f", {selector} destinations", selector=selector)


# ---------------------------------------------------------------------------------------------- caches
def caches(bench: Bench) -> Iterator[Candidate]:
    """Ops that reuse their results, ours and those of others, alone and on top of merging."""
    for every in (2, 3):
        for start in (0.0, 0.2):
            reuse = Schedule(1, 1, reuse_every=every, reuse_from=start)
            yield Candidate(f"reuse every {every} from {start:.0%}", best(0.0), reuse)
            yield Candidate.of(f"{OURS} + reuse every {every} from {start:.0%}", best(0.5), replace(reuse, start=start))
    for name, cache in foreign_caches(bench).items():
        yield Candidate(name, best(0.0), EVERY_STEP, cache)
        for ratio in (0.25, 0.5):
            yield replace(our(ratio), name=f"{OURS} + {name} {ratio:.2f}", around=cache)


def foreign_caches(bench: Bench) -> dict[str, Around]:
    """Those that work on the model, by name."""
    if bench.model == "sdxl":
        return {f"DeepCache every {interval}": DeepCache(interval) for interval in (2, 3, 5)}
    before = max(2, round(0.15 * bench.steps))  # two full steps at least, to extrapolate from
    return {
        **{f"FirstBlockCache {threshold:g}": FirstBlockCache(threshold) for threshold in (0.05, 0.1, 0.2)},
        **{f"TaylorSeer every {interval}": TaylorSeer(interval, before) for interval in (2, 3, 5)},
    }


SETS = {
    "paper": paper,
    "ours": ours,
    "peers": peers,
    "selectors": selectors,
    "knobs": knobs,
    "windows": windows,
    "caches": caches,
}


def known(model: str, steps: int) -> dict[str, str]:
    """The digest of every candidate there may be, by name."""
    bench = Bench(model, steps, lambda _: 1.0)
    sets = (one for name, made in SETS.items() if name != OURS for one in made(bench))
    return {one.name: digest(one) for one in (*ladder(), *sets)}
