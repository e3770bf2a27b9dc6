"""Is a guarded patch ever slower than none, and does it merge where that wins? ``python -m benchmarks.speed_guard``.

SDXL and Stable Diffusion 1.5 over sizes and ratios, small ones above all: unpatched, merging everywhere, and guarded.
Rows go to ``benchmarks/results/guard.csv`` as they are measured; what is there already is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.machine import environment, ready_to_time
from benchmarks.rows import least, where
from benchmarks.speed import ROOT, Case, timed, timing_parser, toma
from tomadiff.evaluation.runs.rows import Row, append, read
from tomadiff.evaluation.timing.workloads import Step
from tomadiff.patch import apply

RESULTS = ROOT / "benchmarks" / "results" / "guard.csv"
CASES = (
    *(Case("sd15", size) for size in (256, 512)),
    *(Case("sdxl", size) for size in (256, 384, 512, 768, 1024)),
)
RATIOS = (0.1, 0.25, 0.5, 0.75)
PAPER = toma("ToMA as in the paper", RATIOS)
SLOWEST, WORTHWHILE, KEPT = 1.03, 1.05, 0.9
"""A guarded step takes at most so many times as long as an unpatched one; where merging everywhere is so much faster,
at least that share of the sites merges."""


def row(case: Case, ratio: float, number: int, step: Step) -> Row:
    """Unpatched, everywhere and guarded, one after the other."""
    unmerged = timed(step, None)["window"]
    method, schedule = PAPER[ratio].method, PAPER[ratio].schedule
    with apply(step.target, method, schedule=schedule, guard=False) as patch:
        free = timed(step, patch)["window"]
    with apply(step.target, method, schedule=schedule, guard=True) as patch:
        guarded = timed(step, patch)["window"]
        levels = patch.report().models[0].levels
    sites, left_out = sum(level.sites for level in levels), sum(level.left_out for level in levels)
    return {
        **case.columns,
        "ratio": f"{ratio:g}",
        "round": str(number),
        "unmerged_s": f"{unmerged:.4f}",
        "everywhere_s": f"{free:.4f}",
        "guarded_s": f"{guarded:.4f}",
        "sites": str(sites),
        "merged_sites": str(sites - left_out),
        **environment(),
    }


def broken(rows: Sequence[Row]) -> list[str]:
    """What is not as promised, in words; by the best of rounds."""
    return [line for name, own in by_setting(rows).items() for line in _broken(name, own)]


def by_setting(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rounds of every model, size and ratio."""
    found: dict[str, list[Row]] = {}
    for one in rows:
        found.setdefault(f"{one['model']} {one['size']}² {one['ratio']}", []).append(one)
    return found


def _broken(name: str, rows: Sequence[Row]) -> Iterator[str]:
    slower, faster = _quotient(rows, "guarded_s", "unmerged_s"), _quotient(rows, "unmerged_s", "everywhere_s")
    merging = min(int(row["merged_sites"]) / int(row["sites"]) for row in rows)
    if slower > SLOWEST:
        yield f"{name}: guarded takes {slower:.3f} times as long as unpatched"
    if faster >= WORTHWHILE and merging < KEPT:
        yield f"{name}: merging is {faster:.2f}× as fast, and only {merging:.0%} of the sites merge"


def _quotient(rows: Sequence[Row], above: str, below: str) -> float:
    return least(rows, above) / least(rows, below)


def measure(case: Case, rounds: int, path: Path, console: Console) -> None:
    """Every row of ``case`` that is missing."""
    threads = torch.get_num_threads()
    todo = [
        (number, ratio)
        for number in range(rounds)
        for ratio in RATIOS
        if not where(read(path), **case.columns, ratio=f"{ratio:g}", round=number, threads=threads)
    ]
    if not todo:
        return
    step = case.step()
    step.warm(None)
    for number, ratio in todo:
        found = row(case, ratio, number, step)
        append(path, found)
        console.print(f"{case.title} {ratio:g}: " + ", ".join(f"{name} {found[name]}" for name in list(found)[5:10]))


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is missing; 1 if a promise is broken."""
    wanted = timing_parser("Guarded patches over sizes and ratios.", CASES, 2, RESULTS).parse_args(given)
    ready_to_time(wanted.threads)
    console = Console(highlight=False)
    for case in wanted.cases:
        measure(case, wanted.rounds, wanted.out, console)
    wrong = broken(read(wanted.out))
    console.print("\n".join(wrong) or "Never slower, and merging where it wins: kept.")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
