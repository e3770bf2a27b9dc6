"""Compiled blocks with and without merging: does merging still win? ``python -m benchmarks.compiled``.

The blocks of a model are compiled one by one by inductor (``compile_repeated_blocks``), as people do; then windows of
ten steps are put together as in :mod:`benchmarks.speed`. The eager model is timed in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from rich.console import Console

from benchmarks.machine import environment, ready_to_time
from benchmarks.rows import where
from benchmarks.speed import BASELINE, ROOT, Case, on, timed, timing_parser
from tomadiff.evaluation.runs.rows import Row, append, read
from tomadiff.evaluation.timing.workloads import Step

RESULTS = ROOT / "benchmarks" / "results" / "compiled.csv"
CASES = (Case("sdxl", 512), Case("flux", 1024, 1))
BLOCKS = {"sd3": ["JointTransformerBlock"], "pixart": ["BasicTransformerBlock"]}  # that diffusers does not name itself
RATIO = 0.5


def compile_blocks(step: Step, model: str, backend: str) -> None:
    """Have the blocks of a step's model compiled when they first run."""
    if model in BLOCKS:
        step.target._repeated_blocks = BLOCKS[model]
    step.target.compile_repeated_blocks(fullgraph=True, backend=backend)


def seconds(step: Step, name: str, rounds: int) -> tuple[float, float]:
    """Of the mean step of a window in the best round, and of the first call, which compiles."""
    torch.compiler.reset()
    began = time.perf_counter()
    with on(step.target, name, RATIO) as patch:
        step.warm(patch)
        first = time.perf_counter() - began
        return min(timed(step, patch)["window"] for _ in range(rounds)), first


def rows(case: Case, rounds: int, backend: str = "inductor") -> list[Row]:
    """Eager and compiled, without and with merging."""
    step = case.step()
    found = []
    for mode in ("eager", "compiled"):
        if mode == "compiled":
            compile_blocks(step, case.model, backend)
        before, first_before = seconds(step, BASELINE, rounds)
        after, first_after = seconds(step, "toma-paper", rounds)
        found.append(
            {
                **case.columns,
                "mode": mode,
                "ratio": f"{RATIO:g}",
                "unmerged_s": f"{before:.4f}",
                "merged_s": f"{after:.4f}",
                "speed_up": f"{before / after:.4f}",
                "first_unmerged_s": f"{first_before:.1f}",
                "first_merged_s": f"{first_after:.1f}",
                "rounds": str(rounds),
                **environment(),
            }
        )
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Measure what is missing, show, write."""
    wanted = timing_parser("Compiled blocks with and without merging.", CASES, 3, RESULTS).parse_args(given)
    ready_to_time(wanted.threads)
    console = Console(highlight=False)
    for case in wanted.cases:
        if where(read(wanted.out), **case.columns):
            console.print(f"{case.title}: all there.")
            continue
        for row in rows(case, wanted.rounds):
            append(wanted.out, row)
            console.print(
                f"{case.title}, {row['mode']}: {row['unmerged_s']} s → {row['merged_s']} s, {row['speed_up']}×"
            )


if __name__ == "__main__":
    main()
