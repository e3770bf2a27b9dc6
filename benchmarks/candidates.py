"""What the fidelity benchmark compares: settings by name, in sets that answer one question each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tomadiff import Schedule, Stripes, Tiles, ToDo, ToFu, ToMA, ToMeSD
from tomadiff.evaluate.trials import Candidate

RATIOS = (0.25, 0.5, 0.75)
EVERY_STEP = Schedule(1, 1)
EVERYWHERE = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True}


def best(ratio: float) -> ToMA:
    """Per block, fitted to the tokens at hand."""
    return ToMA(ratio, scope="block", unmerge="least-squares")


def paper(steps: int) -> Iterator[Candidate]:
    """The paper's settings; with few steps, refreshed at every one."""
    for ratio in RATIOS:
        yield Candidate.of("paper", ToMA.paper(ratio), EVERY_STEP if steps < 10 else None)


def knobs(_: int) -> Iterator[Candidate]:
    """One setting changed at a time, from the paper's and from the best found, at ratio 0.5."""
    old, new = ToMA.paper(0.5), best(0.5)
    fresh = replace(old, scope="block")
    yield Candidate.of("paper", old)
    yield Candidate.of("paper, random destinations", replace(old, selector="random"))
    yield Candidate.of("paper, strided destinations", replace(old, selector="strided"))
    yield Candidate.of("paper, temperature .05", replace(old, temperature=0.05))
    yield Candidate.of("paper, temperature .1", replace(old, temperature=0.1))
    yield Candidate.of("paper, pseudo-inverse", replace(old, unmerge="pseudo-inverse"))
    yield Candidate.of("paper, once per block", replace(old, span="block"))
    yield Candidate.of("paper, tiles of 8", replace(old, regions=Tiles(8)))
    yield Candidate.of("paper, tiles of 2", replace(old, regions=Tiles(2)))
    yield Candidate.of("paper, stripes", replace(old, regions=Stripes(16)))
    yield Candidate.of("paper, every step", old, EVERY_STEP)
    yield Candidate.of("paper, per stack, every step", replace(old, scope="stack"), EVERY_STEP)
    yield Candidate.of("paper, per block, every step", fresh, EVERY_STEP)
    yield Candidate.of("least squares", replace(old, unmerge="least-squares"))
    yield Candidate.of("least squares, every step", replace(old, unmerge="least-squares"), EVERY_STEP)
    yield Candidate.of("least squares, per block, every 5", new, Schedule(5, 5))
    yield Candidate.of("least squares, per block, every 3", new, Schedule(3, 3))
    yield Candidate.of("least squares, per block, 3 and 1", new, Schedule(3, 1))
    yield Candidate.of("least squares, per block, every 2", new, Schedule(2, 2))
    yield Candidate.of("least squares, per block, every step", new, EVERY_STEP)
    yield Candidate.of("least squares, per block, tiles of 8", replace(new, regions=Tiles(8)), EVERY_STEP)
    yield Candidate.of("only attention", replace(old, merge_cross_attention=False, merge_feed_forward=False))
    yield Candidate.of("only cross-attention", replace(old, merge_attention=False, merge_feed_forward=False))
    yield Candidate.of("only feed-forward", replace(old, merge_attention=False, merge_cross_attention=False))
    yield Candidate.of("only level 0", replace(old, levels=(0,)))
    for start in (0.1, 0.2, 0.3, 0.4):
        yield Candidate.of(f"best, from {start:.0%}", new, replace(EVERY_STEP, start=start))
    yield Candidate.of("best, until 80%", new, replace(EVERY_STEP, stop=0.8))
    yield Candidate.of("best, ramp .25 to .75", new, Schedule.ramp(0.25, 0.75, destinations_every=1, weights_every=1))
    sparing = {"feed_forward": 0.25}
    yield Candidate.of("best, feed-forward .25", new, replace(EVERY_STEP, ratio_at_op=sparing))
    yield Candidate.of("best, coverage .95", replace(new, coverage=0.95), EVERY_STEP)


def windows(_: int) -> Iterator[Candidate]:
    """How late merging begins against how much merges then: a choice of both for every cost."""
    for ratio in (0.5, 0.625, 0.75, 0.875):
        for start in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
            yield Candidate.of(f"best, from {start:.0%}", best(ratio), replace(EVERY_STEP, start=start))


def peers(_: int) -> Iterator[Candidate]:
    """ToMeSD and ToFu as they come and on every op, ToDo."""
    for ratio in RATIOS:
        yield Candidate.of("tomesd", ToMeSD(ratio))
        yield Candidate.of("tomesd, everywhere", ToMeSD(ratio, **EVERYWHERE))
        yield Candidate.of("tofu", ToFu(ratio))
        yield Candidate.of("tofu, everywhere", ToFu(ratio, **EVERYWHERE))
    yield Candidate.of("todo", ToDo())


def selectors(_: int) -> Iterator[Candidate]:
    """What facility location is worth, with all else as in the paper."""
    for ratio in RATIOS:
        for selector in ("facility_location", "random", "strided", "kmeans"):
            yield Candidate.of(f"selector {selector}", replace(ToMA.paper(ratio), selector=selector))


def caches(_: int) -> Iterator[Candidate]:
    """Ops that reuse their results, alone and on top of merging."""
    for every in (2, 3):
        for start in (0.0, 0.2):
            reuse = Schedule(1, 1, reuse_every=every, reuse_from=start)
            yield Candidate.of(f"reuse every {every} from {start:.0%}", best(0.0), reuse)
            yield Candidate.of(f"best + reuse every {every} from {start:.0%}", best(0.5), replace(reuse, start=start))


SETS = {"paper": paper, "knobs": knobs, "windows": windows, "peers": peers, "selectors": selectors, "caches": caches}
