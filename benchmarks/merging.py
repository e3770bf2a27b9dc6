"""Are merging and unmerging by matrix products faster than ToMeSD's gathering and scattering?

Run by ``make bench``. Prints a table, writes ``benchmarks/results/merging.csv`` and fails if the promise is broken: in
tiles and in stripes, ToMA merges and unmerges 4096 tokens of 640 channels and 1024 of 1280 faster than the package
``tomesd``, at ratios .25, .5 and .75. Merging over the whole grid is shown as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import environment
from tomadiff.evaluation.runs.rows import write
from tomadiff.evaluation.timing.merge_speed import ROUNDS, Timing, compare, measure

RESULTS = Path(__file__).parent / "results" / "merging.csv"


def table(timings: Sequence[Timing], machine: dict[str, str]) -> Table:
    """A row for each size, ratio and op; a column for each contender."""
    titles = list(dict.fromkeys(timing.title for timing in timings))
    caption = f"{machine['cpu']}, threads used: {machine['threads']}"
    shown = Table(title="Milliseconds of the fastest round, float32", caption=caption, title_justify="left")
    for heading in ("tokens", "ratio", "", *titles):
        shown.add_column(heading, justify="right")
    best = {(timing.tokens, timing.ratio, timing.op, timing.title): timing.best for timing in timings}
    for tokens, ratio, op in dict.fromkeys(key[:3] for key in best):
        own = [f"{best[tokens, ratio, op, title] * 1000:.2f}" for title in titles]
        shown.add_row(str(tokens), f"{ratio:g}", op, *own)
    return shown


def write_csv(path: Path, timings: Sequence[Timing], machine: dict[str, str], rounds: int) -> None:
    """One row per timing, each with all that is needed to read it alone."""
    rows = [
        {
            **{name: value for name, value in timing.as_row().items() if name not in ("best", "middle")},
            "best_ms": f"{timing.best * 1000:.3f}",
            "median_ms": f"{timing.middle * 1000:.3f}",
            "rounds": rounds,
            "batch": 1,
            "dtype": "float32",
            **machine,
        }
        for timing in timings
    ]
    write(path, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ToMA's merge and unmerge against ToMeSD's.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count")
    parser.add_argument("--threads", type=int, default=1, help="of torch; on a busy machine more than 1 mostly waits")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV goes")
    return parser.parse_args()


def main() -> int:
    """Measure, show, write; 1 if the promise is broken."""
    given = arguments()
    torch.set_num_threads(given.threads)
    timings, machine = measure(rounds=given.rounds), environment()
    write_csv(given.out, timings, machine, given.rounds)
    worst = compare(timings)[0]
    console = Console()
    console.print(table(timings, machine))
    console.print(f"The closest: {worst}; faster promised: {'kept' if worst.share < 1 else 'BROKEN'}.")
    return int(worst.share >= 1)


if __name__ == "__main__":
    sys.exit(main())
