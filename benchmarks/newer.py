"""FLOPs left, memory held and predicted speed-ups on the newer architectures; ``python -m benchmarks.newer``.

Shapes alone are traced, on the meta device in bfloat16: the same numbers on every machine. Writes
``benchmarks/results/newer.csv`` and a section each of ``docs/results/flops.md`` and ``docs/results/predictions.md``.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import torch

import tomadiff
from benchmarks.flops import PAGE as FLOPS_PAGE
from benchmarks.flops import put_in_section
from benchmarks.predictions import PAGE as PREDICTIONS_PAGE
from benchmarks.rows import where
from benchmarks.speed import RATIOS, ROOT, Case
from tomadiff import ToMA, kernels
from tomadiff.cost import GPUS, trace
from tomadiff.evaluation.runs.rows import Row, append, read
from tomadiff.evaluation.timing.architectures import ARCHITECTURES

RESULTS = ROOT / "benchmarks" / "results" / "newer.csv"
BEGIN, END = "<!-- newer: written by python -m benchmarks.newer -->", "<!-- newer: end -->"
CASES = [Case("flux3", size, dtype="bfloat16") for size in (1024, 2048, 4096)] + [
    Case(name, 1024, dtype="bfloat16") for name in ("z-image", "flux2-klein", "qwen-image-2.1", "anima", "krea2")
]
MACHINES = {name: machine for name, machine in GPUS.items() if machine.fuses}
HOW_FLOPS = """Share of the unmerged model's FLOPs that is left with the default, `ToMA(ratio)`, merging, unmerging and
planning included, on the exact architectures without weights. Where a model card names no sizes, they are the defaults
of diffusers' class. One sample; 512 text tokens, 128 with Z-Image. No block is skipped.

"Held" is what the patch keeps at ratio .5 in bfloat16 with one guidance pass: plans of all blocks. The percentage is of
the most bytes of new tensors that the unmerged call has alive at once."""
HOW_PREDICTED = """Nothing here was run on a GPU. The same roofline as above, for `ToMA(ratio)` in bfloat16 on one
sample; GPUs that run tomadiff's kernels."""


def measured(case: Case) -> list[Row]:
    """The unmerged model, and merging at every ratio."""
    step = case.step("meta")
    (plain,) = step.parts(None)
    unmerged = trace(plain.call)
    rows = []
    for ratio in RATIOS:
        with kernels.assumed(True), tomadiff.apply(step.target, ToMA(ratio, skip=0), guard=False) as patch:
            step.warm(patch)
            (part,) = step.parts(patch)  # plans are new at every step
            merged = trace(part.call)
            held = sum(plan.nbytes for plan in patch.plans().values())
        faster = {
            name: f"{machine.seconds(unmerged) / machine.seconds(merged):.3f}" for name, machine in MACHINES.items()
        }
        rows.append(
            {
                **case.columns,
                "ratio": f"{ratio:g}",
                "unmerged_tflop": f"{unmerged.flops / 1e12:.2f}",
                "share": f"{merged.flops / unmerged.flops:.4f}",
                "held_bytes": str(held),
                "peak_bytes": str(unmerged.peak),
                **faster,
                "torch": torch.__version__.partition("+")[0],
                "diffusers": version("diffusers"),
                "tomadiff": tomadiff.__version__,
            }
        )
    return rows


# ---------------------------------------------------------------------------------------------- for people
def traced(found: list[Row]) -> list[Case]:
    """The cases whose rows are there."""
    return [case for case in CASES if where(found, **case.columns)]


def title(case: Case) -> str:
    """With its size where there are several."""
    size = f" {case.size}²" if case.model == "flux3" else ""
    return f"{ARCHITECTURES[case.model].title}{size}"


def flops_table(found: list[Row]) -> str:
    """Shares by model and ratio."""
    lines = ["| model | TFLOP per call | .25 | .5 | .75 | held at .5 |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in traced(found):
        own = [where(found, **case.columns, ratio=f"{ratio:g}")[0] for ratio in RATIOS]
        shares = " | ".join(f"{float(row['share']):.3f}" for row in own)
        kept, peak = int(own[1]["held_bytes"]), int(own[1]["peak_bytes"])
        lines.append(
            f"| {title(case)} | {float(own[1]['unmerged_tflop']):.1f} | {shares} | "
            f"{kept / 2**20:.0f} MiB, {kept / peak:.1%} |"
        )
    return "\n".join(lines)


def predictions_table(found: list[Row]) -> str:
    """Speed-ups by GPU and model, at the three ratios."""
    lines = ["| | " + " | ".join(MACHINES) + " |", "| --- | " + " | ".join(["---:"] * len(MACHINES)) + " |"]
    for case in traced(found):
        own = [where(found, **case.columns, ratio=f"{ratio:g}")[0] for ratio in RATIOS]
        cells = (" ".join(f"{float(row[name]):.2f}×" for row in own) for name in MACHINES)
        lines.append(f"| {title(case)} at .25, .5, .75 | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Trace what is not in the file yet (``--anew``: all, ``--write``: nothing), and write."""
    torch.set_num_threads(1)
    if "--anew" in sys.argv:
        RESULTS.unlink(missing_ok=True)
    for case in CASES if "--write" not in sys.argv else ():
        if not where(read(RESULTS), **case.columns):
            for row in measured(case):
                append(RESULTS, row)
    found = read(RESULTS)
    put_in_section(FLOPS_PAGE, "Newer models", f"{HOW_FLOPS}\n\n{flops_table(found)}", BEGIN, END)
    put_in_section(PREDICTIONS_PAGE, "Newer models", f"{HOW_PREDICTED}\n\n{predictions_table(found)}", BEGIN, END)


if __name__ == "__main__":
    main()
