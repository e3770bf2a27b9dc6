"""What merging should win on GPUs, by the roofline of :mod:`tomadiff.cost`; ``python -m benchmarks.predictions``.

Nothing here was run on a GPU. Exact architectures at 1024² in float16 are traced without weights, SDXL and SD3.5 with
the two samples of guidance. The rates of the GPUs are published; what is reached of them is assumed, the same for all.
Flux.1-dev is compared with the times that ToMA's paper gives. Writes ``benchmarks/results/predictions.csv`` and a
section of ``docs/results/predictions.md``.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from benchmarks.flops import put_in_section
from benchmarks.rows import where
from benchmarks.speed import BASELINE, CONTENDERS, RATIOS, ROOT, Case, contender, title_of
from benchmarks.speed_counted import Key, traced
from tomadiff import Schedule, Tiles, ToMA, Whole
from tomadiff.cost import GPUS, Hardware
from tomadiff.evaluation.runs.rows import Row, append

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "predictions.csv", ROOT / "docs" / "results" / "predictions.md"
BEGIN, END = "<!-- predictions: written by python -m benchmarks.predictions -->", "<!-- predictions: end -->"
SDXL, FLUX, SD3 = (Case(name, 1024, None, batch, "float16") for name, batch in (("sdxl", 2), ("flux", 1), ("sd3", 2)))
METHODS = ("toma", "toma-paper", "toma-whole", "tomesd", "todo")

PAPER = "paper"
_SETTINGS: dict[str, Any] = {
    "regions": Tiles(4),
    "attention_regions": Whole(),
    "unmerge": "transpose",
}
KNOWN = {
    **{name: CONTENDERS[name] for name in METHODS},
    PAPER: contender(
        "ToMA as published for Flux", partial(ToMA.tile, **_SETTINGS, scope="level", skip=10), Schedule(10, 5)
    ),
}
HOW = """Nothing here was run on a GPU. These are predictions by `tomadiff.cost`, a roofline with launch cost. They are
speed-ups over the unmerged model, planning included.

The exact models at 1024² in float16 are traced operator by operator without weights. SDXL and SD3.5 have the two
samples of guidance, and no block is skipped. The traces use tomadiff's kernels; V100 and RTX 8000 are too old for them
and use plain torch.

A GPU has its published dense rate and bandwidth. What is reached of them is assumed, alike for all:

| | assumed |
| --- | --- |
| large matrix products | 70 % of the dense rate |
| attention, convolutions | 60 % and 70 % of large products |
| memory | 80 % of the bandwidth |
| gathering, scattering | half and a tenth of memory's speed |
| a launch | 5 µs |"""
STEPS, LIKELY = 35, "RTX 6000 Ada"
PUBLISHED = {0.0: 21.03, 0.25: 20.14, 0.5: 18.58, 0.75: 16.12}  # s per image of Flux.1-dev, 35 steps, 1024², table 10


def keys() -> list[Key]:
    """What has to be traced."""
    cases = [(case, METHODS) for case in (SDXL, SD3)] + [(FLUX, (*METHODS, PAPER))]
    unmerged: list[Key] = [(case, BASELINE, 0.0) for case, _ in cases]
    return unmerged + [(case, name, ratio) for case, names in cases for name in names for ratio in KNOWN[name]]


def rows(machine: Hardware) -> list[Row]:
    """Seconds per step and speed-ups on one machine."""
    found = []
    for case, name, ratio in keys():
        own = traced((case, name, ratio), KNOWN, fused=machine.fuses)
        seconds = own.seconds(machine)
        faster = traced((case, BASELINE, 0.0)).seconds(machine) / seconds
        numbers = {
            "step_ms": f"{1000 * seconds:.2f}",
            "speed_up": f"{faster:.3f}",
            "launches": f"{own.mean.launches:.0f}",
        }
        found.append({"hardware": machine.name, **case.columns, "method": name, "ratio": f"{ratio:g}", **numbers})
    return found


def compared_with_paper(found: list[Row]) -> str:
    """Flux of the paper: its times and the predicted ones, each as a share of the unmerged image's."""
    lines = ["| Flux.1-dev, whole-grid attention, 10 blocks skipped | " + " | ".join(f"{r:g}" for r in RATIOS) + " |"]
    lines.append("| --- | ---: | ---: | ---: |")
    published = [PUBLISHED[ratio] / PUBLISHED[0.0] for ratio in RATIOS]
    lines.append("| published, share of the unmerged time | " + " | ".join(f"{one:.3f}" for one in published) + " |")
    for name in GPUS:
        own = [1 / _faster(found, name, FLUX, PAPER, ratio) for ratio in RATIOS]
        lines.append(f"| predicted, {name} | " + " | ".join(f"{one:.3f}" for one in own) + " |")
    return "\n".join(lines)


def table(found: list[Row]) -> str:
    """Predicted speed-ups of all GPUs."""
    columns = [(case, ratio) for case in (SDXL, FLUX, SD3) for ratio in RATIOS]
    heads = [*(f"{case.model} {ratio:g}" for case, ratio in columns), "launches, SDXL 0.5"]
    lines = ["| | " + " | ".join(heads) + " |", "| --- | " + " | ".join(["---:"] * len(heads)) + " |"]
    for name in GPUS:
        for method in METHODS:
            own = [
                f"{_faster(found, name, case, method, ratio):.2f}×" if ratio in KNOWN[method] else "–"
                for case, ratio in columns
            ]
            (at_half,) = where(found, hardware=name, **SDXL.columns, method=method, ratio=f"{_middle(method):g}")
            lines.append(f"| {name}: {title_of(KNOWN[method])} | " + " | ".join([*own, at_half["launches"]]) + " |")
    return "\n".join(lines)


def _middle(method: str) -> float:
    """The ratio whose launches are shown: 0.5, or the method's own."""
    return 0.5 if 0.5 in KNOWN[method] else next(iter(KNOWN[method]))


def _faster(found: list[Row], hardware: str, case: Case, method: str, ratio: float) -> float:
    (own,) = where(found, hardware=hardware, **case.columns, method=method, ratio=f"{ratio:g}")
    return float(own["speed_up"])


def flux_seconds(found: list[Row], name: str, method: str, ratio: float) -> float:
    """Of the paper's image of 35 steps."""
    (own,) = where(found, hardware=name, **FLUX.columns, method=method, ratio=f"{ratio:g}")
    return STEPS * float(own["step_ms"]) / 1000


def distance(found: list[Row]) -> str:
    """How far the predictions are from the paper's seconds, in words."""
    unmerged = {name: flux_seconds(found, name, BASELINE, 0.0) for name in GPUS}
    behind = [PUBLISHED[ratio] / flux_seconds(found, LIKELY, PAPER, ratio) for ratio in RATIOS]
    every = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in unmerged.items())
    return (
        f"The unmerged image of {STEPS} steps took the paper {PUBLISHED[0.0]} s on a GPU that it does not name. "
        f"Predicted are {every}. On the {LIKELY}, where the paper timed SDXL, that is "
        f"{unmerged[LIKELY] / PUBLISHED[0.0] - 1:+.1%}. With merging its images took "
        f"{', '.join(f'{one:.2f}' for one in behind)} times as long as predicted there, at ratio .25, .5 and .75. "
        "The prediction lets merging cost what its operators cost and no more. The published implementation is "
        "another one than this package, and took more."
    )


def text(found: list[Row]) -> str:
    """What stands on the page."""
    return "\n\n".join(
        [
            HOW,
            table(found),
            compared_with_paper(found),
            distance(found),
        ]
    )


def main(processes: int | None = None) -> None:
    """Trace in one process per core, predict, write."""
    torch.set_num_threads(1)
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(_trace, [(key, fused) for key in keys() for fused in (False, True)]))
    found = [row for machine in GPUS.values() for row in rows(machine)]
    RESULTS.unlink(missing_ok=True)
    for row in found:
        append(RESULTS, row)
    put_in_section(PAGE, "Predictions for GPUs", text(found), BEGIN, END)
    print(text(found))


def _trace(one: tuple[Key, bool]) -> None:
    key, fused = one
    traced(key, KNOWN, fused=fused)


if __name__ == "__main__":
    main()
