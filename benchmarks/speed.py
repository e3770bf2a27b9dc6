"""How much faster are steps of full-size denoisers with merging? ``python -m benchmarks.speed``.

The exact SDXL UNet at 512² and 1024², and blocks of Flux's and SD3.5's width at 1024², with random weights in float32.
A window of ten steps is put together from one selecting, one reweighing and eight plain ones, each timed once per
round, so that planning is included and a step of half a minute stays affordable. Every method is timed right after
the unmerged model, and compared with that. Guarding is off: what loses shall be seen to lose. The process keeps the
memory it frees (:mod:`tomadiff.utils.memory`), for everyone alike: else the system's clearing of pages is timed too.

Rows go to ``benchmarks/results/speed.csv`` as they are measured; what is there already is skipped, so a run can be
stopped and started again. ``--quick`` (``make bench``) is the shape of it in a few minutes, in a file of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.machine import environment, ready_to_time
from benchmarks.rows import where
from tomadiff import Bound, Method, Patch, Schedule, Stripes, Tiles, ToDo, ToFu, ToMA, ToMeSD, Whole, apply
from tomadiff.cost import Hardware
from tomadiff.evaluation.runs.rows import Row, append, read
from tomadiff.evaluation.runs.timer import seconds_of
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.timing.architectures import ARCHITECTURES, build, inputs
from tomadiff.evaluation.timing.workloads import Step

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "speed.csv"
QUICK = ROOT / "build" / "speed-quick.csv"
RATIOS = (0.25, 0.5, 0.75)
BASELINE = "baseline"
PARTS = ("selecting", "reweighing", "plain")


@dataclass(frozen=True)
class Case:
    """A model to time: an architecture, the side of its images in pixels, how deep its stacks are; samples; dtype."""

    model: str
    size: int
    depth: int | None = None
    batch: int = 1
    dtype: str = "float32"

    @property
    def title(self) -> str:
        """For people."""
        cut = "" if self.depth is None else f", {self.depth} block{'s' * (self.depth > 1)} per stack"
        return f"{ARCHITECTURES[self.model].title} {self.size}²{cut}"

    @property
    def columns(self) -> dict[str, str]:
        """As in the CSV."""
        return {
            "model": self.model,
            "size": str(self.size),
            "depth": str(self.depth or "all"),
            "batch": str(self.batch),
            "dtype": self.dtype,
        }

    def step(self, device: str = "cpu") -> Step:
        """A step of it; on the meta device, of its shapes alone."""
        dtype = getattr(torch, self.dtype)
        given = inputs(self.model, self.size, device, self.batch, dtype)
        return Step(build(self.model, device, self.depth, dtype), self.title, given)


CASES = (Case("sdxl", 512), Case("sdxl", 1024), Case("flux", 1024, 1), Case("sd3", 1024, 2))
ROUNDS = {Case("sdxl", 512): 3}  # two of the others

# Everything that our defaults might change is written out; no block is skipped, every op and level merges.
_TOMA: dict[str, Any] = {"unmerge": "transpose", "scope": "level", "skip": 0}
_ALL: dict[str, Any] = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True, "skip": 0}
_EVERY = Schedule(destinations_every=10, weights_every=5)


Contender = dict[float, Variant]
"""A method by ratio; variants are named as in tables."""


def contender(
    title: str, make: Callable[[float], Method], schedule: Schedule | None = None, ratios: Sequence[float] = RATIOS
) -> Contender:
    """A method at the ratios it can do, and how long its plans are kept; ``None``: its own schedule."""
    methods = {ratio: make(ratio) for ratio in ratios}
    return {ratio: Variant(title, method, schedule or method.schedule) for ratio, method in methods.items()}


def title_of(known: Contender) -> str:
    """What tables call it."""
    return next(iter(known.values())).name


def toma(title: str, ratios: Sequence[float] = RATIOS, **settings: Any) -> Contender:
    """ToMA with the paper's settings, but for ``settings``."""
    pinned: dict[str, Any] = {**_TOMA, "regions": Tiles(4), "span": "op", **settings}
    return contender(title, partial(ToMA.tile, **pinned), _EVERY, ratios)


CONTENDERS: dict[str, Contender] = {
    "toma": contender("ToMA", lambda ratio: ToMA(ratio, skip=0), Schedule(1, 1)),
    "toma-paper": toma("ToMA as in the paper"),
    "toma-stripe": toma("ToMA stripe", regions=Stripes(16)),
    "toma-whole": toma("ToMA, whole-grid attention", attention_regions=Whole()),
    "toma-once": toma("ToMA once per block", span="block"),
    "tomesd": contender("ToMeSD, every op and level", lambda ratio: ToMeSD(ratio, **_ALL)),
    "tofu": contender("ToFu, every op and level", lambda ratio: ToFu(ratio, **_ALL)),
    "tomesd-own": contender("ToMeSD, its own defaults", lambda ratio: ToMeSD(ratio, skip=0), ratios=(0.5,)),
    "tofu-own": contender("ToFu, its own defaults", lambda ratio: ToFu(ratio, skip=0), ratios=(0.5,)),
    "todo": contender("ToDo", lambda _: ToDo(skip=0), ratios=(0.75,)),
    "bound": contender("speed limit of merging", lambda ratio: Bound(ratio, skip=0)),
}
SHORT = {"toma-paper": (0.5, 0.75), "tomesd": (0.5,), "todo": (0.75,), "bound": (0.5,)}  # what --quick times


# ---------------------------------------------------------------------------------------------- timing
def on(model: Any, name: str, ratio: float) -> AbstractContextManager[Patch | None]:
    """A contender's patch on ``model``; none for the baseline."""
    if name == BASELINE:
        return nullcontext()
    known = CONTENDERS[name][ratio]
    return apply(model, known.method, schedule=known.schedule, guard=False)


def timed(step: Step, patch: Patch | None) -> dict[str, float]:
    """Seconds of every kind of step, and of the mean step of a window (``window``)."""
    parts = step.parts(patch)
    seconds = {part.name: seconds_of(part.call, step.device) for part in parts}
    return seconds | {"window": sum(part.share * seconds[part.name] for part in parts)}


def turn(step: Step, name: str, ratios: Sequence[float]) -> Iterator[tuple[float, dict[str, float], float]]:
    """Time the unmerged model, then ``name`` at each ratio: ratio, seconds, and the unmerged model's."""
    unmerged = timed(step, None)["window"]
    for ratio in ratios:
        with on(step.target, name, ratio) as patch:
            yield ratio, timed(step, patch), unmerged


def row(case: Case, name: str, ratio: float, turn_number: int, seconds: dict[str, float], unmerged: float) -> Row:
    """A line of the CSV, which can be read alone."""
    parts = {f"{part}_s": f"{seconds[part]:.4f}" if part in seconds else "" for part in PARTS}
    return {
        **case.columns,
        "method": name,
        "ratio": f"{ratio:g}",
        "round": str(turn_number),
        "unmerged_s": f"{unmerged:.4f}",
        **parts,
        "window_s": f"{seconds['window']:.4f}",
        "speed_up": f"{unmerged / seconds['window']:.4f}",
        **environment(),
    }


def missing(path: Path, case: Case, name: str, turn_number: int, ratios: Sequence[float]) -> list[float]:
    """Ratios of a turn that are not in the file yet, for as many threads as now."""
    threads = torch.get_num_threads()
    there = where(read(path), **case.columns, method=name, round=turn_number, threads=threads)
    known = {float(row["ratio"]) for row in there}
    return [ratio for ratio in ratios if ratio not in known]


def measure(case: Case, plan: dict[str, tuple[float, ...]], rounds: int, path: Path, console: Console) -> None:
    """Every turn of ``case`` that is missing; the model is built only if one is."""
    turns = [
        (number, name, left)
        for number in range(rounds)
        for name, ratios in plan.items()
        if (left := missing(path, case, name, number, ratios))
    ]
    if not turns:
        console.print(f"{case.title}: all there.")
        return
    step = case.step()
    step.warm(None)
    for number, name, ratios in turns:
        for ratio, seconds, unmerged in turn(step, name, ratios):
            found = row(case, name, ratio, number, seconds, unmerged)
            append(path, found)
            console.print(
                f"{case.title}, round {number}: {name} {ratio:g}: {float(found['speed_up']):.3f}×", highlight=False
            )


def note_machine(path: Path) -> None:
    """What this machine can do, for predictions; once for each number of threads."""
    machine = environment()
    if not where(read(path), threads=machine["threads"], cpu=machine["cpu"], torch=machine["torch"]):
        append(path, {**Hardware.measure().as_row(), **machine})


# ---------------------------------------------------------------------------------------------- the command
def parse_case(text: str) -> Case:
    """``"flux:1024:1"`` is one block per stack of Flux at 1024²."""
    model, size, *depth = text.split(":")
    return Case(model, int(size), int(depth[0]) if depth else None)


def timing_parser(
    description: str, cases: Sequence[Case] = (), rounds: int | None = None, out: Path | None = None
) -> argparse.ArgumentParser:
    """The arguments of every command that times cases."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--cases", nargs="+", type=parse_case, default=cases, help="model:size or model:size:depth; default: all"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="how often everything is timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=out, help="the CSV")
    return parser


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = timing_parser("Steps of full-size denoisers with and without merging.")
    parser.add_argument("--quick", action="store_true", help="SDXL at 512² and few methods, into build/")
    parser.add_argument("--methods", nargs="*", choices=tuple(CONTENDERS), help="default: all")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Measure what is missing."""
    wanted = arguments(given)
    ready_to_time(wanted.threads)
    plan = SHORT if wanted.quick else {name: tuple(known) for name, known in CONTENDERS.items()}
    plan = {name: ratios for name, ratios in plan.items() if not wanted.methods or name in wanted.methods}
    cases = wanted.cases or CASES[: 1 if wanted.quick else None]
    path = wanted.out or (QUICK if wanted.quick else RESULTS)
    if not wanted.quick:
        note_machine(path.with_name("hardware.csv"))
    for case in cases:
        rounds = wanted.rounds or (1 if wanted.quick else ROUNDS.get(case, 2))
        measure(case, plan, rounds, path, Console())


if __name__ == "__main__":
    main()
