"""What ``tomadiff doctor --gpu`` measures in a few minutes, as one block of Markdown to paste into an issue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from torch import Tensor

import tomadiff
from tomadiff.errors import SettingError

if TYPE_CHECKING:
    from tomadiff.evaluation.timing.latency import Measurement
    from tomadiff.evaluation.timing.workloads import Workload

METHODS = ("toma", "toma-paper", "tomesd-all", "todo")
RATIOS = (0.25, 0.5)
ROUNDS = 3
_FULL = 20 * 2**30  # bytes of memory that a whole SDXL and its work take and more; below, a cut of it
_GRID, _CHANNELS = tomadiff.Grid(32, 32), 320


def place_of(device: str | None) -> torch.device:
    """The device to measure; a CPU only for those who name it."""
    from tomadiff.evaluation.runs.models import device_of

    place = device_of(device)
    if place.type == "cpu" and device is None:
        raise SettingError(
            f"There is no GPU that torch {torch.__version__} can use, so --gpu has nothing to measure. "
            "Add --device cpu to measure the CPU in the same way."
        )
    return place


def measured(about: Mapping[str, str], model: str | None, place: torch.device) -> str:
    """What is known ``about`` the machine and everything that is measured, while stderr says what is under way."""
    from tomadiff.evaluation.timing.workloads import dtype_of

    with Console(stderr=True).status("comparing kernels") as status:
        parts = [kernels(place, dtype_of(None, place))]
        status.update("loading")
        parts.append(times(model, place, lambda what: status.update(f"timing {what}")))
    rows = "\n".join(f"| {name} | {text} |" for name, text in about.items())
    return "\n\n".join([f"### tomadiff doctor --gpu\n\n| | |\n|---|---|\n{rows}", *parts])


# ---------------------------------------------------------------------------------------------- kernels
def kernels(device: torch.device, dtype: torch.dtype) -> str:
    """Whether the kernels give what plain torch gives."""
    from tomadiff import kernels

    if not kernels.available(device):
        return f"**Kernels**: none run on {device}; plain torch does the work."
    rows = [f"| {name} | {apart} |" for name, apart in _compared(device, dtype)]
    return "\n".join(["**Kernels against plain torch**", "", "| what | largest difference |", "|---|---|", *rows])


def _compared(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    tokens = torch.randn(2, _GRID.tokens, _CHANNELS, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    for method in (tomadiff.ToMA(0.5), tomadiff.ToMA.paper(0.5)):
        try:
            plain, fused = (_through(method.changed({"kernels": way}), tokens) for way in ("torch", "triton"))
        except Exception as problem:  # whatever it is, it is what the report is for
            yield str(method).partition(",")[0], f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
            continue
        for name, one in plain.items():
            yield f"{type(method).__name__}, {method.unmerge}: {name}", f"{_apart(one, fused[name]):.2e}"


def _through(method: tomadiff.ToMA, tokens: Tensor) -> dict[str, Tensor]:
    plan = method.plan(tokens, _GRID)
    merged = plan.merge(tokens)
    return {"coverage": plan.coverage, "merged tokens": merged, "unmerged tokens": plan.unmerge_add(merged, tokens)}


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


# ---------------------------------------------------------------------------------------------- times
def times(model: str | None, device: torch.device, done: Callable[[str], None]) -> str:
    """What we recommend, the default and the baselines: on images of a pipeline, or on a step of a random SDXL."""
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.generate import call_of
    from tomadiff.evaluation.runs.variants import RECOMMENDED
    from tomadiff.evaluation.timing.workloads import WholeImage, architecture_steps

    if model is not None:
        pipe = models.load(model, device)
        workload: Workload = WholeImage(pipe, model, call_of(model, pipe))
        return _timed(workload, (RECOMMENDED, *METHODS), done)
    depth, size = _fits(device)
    _, step = next(architecture_steps("sdxl", [size], depth, 2, str(device)))
    return _timed(step, METHODS, done) + "\n\nRandom weights: times are those of the real model."


def _fits(device: torch.device) -> tuple[int | None, int]:
    """Blocks per stack and pixels: all of SDXL at 1024² where it fits, on a CPU a small cut."""
    if device.type != "cuda":
        return 1, 256
    return (None if torch.cuda.get_device_properties(device).total_memory >= _FULL else 2), 1024


def _timed(workload: Workload, methods: Sequence[str], done: Callable[[str], None]) -> str:
    from tomadiff.evaluation.runs.failures import Failures
    from tomadiff.evaluation.timing.latency import contenders, measure

    failures, (field, refused) = Failures(), contenders(methods, RATIOS, workload)
    measured = measure(workload, field, ROUNDS, lambda: done(workload.title), failures=failures)
    rows = [_row(one) for one in measured]
    head = "| method | merged | median s | spread | speed-up | launches |", "|---|--:|--:|--:|--:|--:|"
    notes = [f"- {line}" for line in (*refused, *failures.lines)]
    return "\n".join([f"**{workload.title}, one {workload.unit}**", "", *head, *rows, *([""] if notes else []), *notes])


def _row(one: Measurement) -> str:
    times = f"{one.median:.4f} | {one.spread:.0%} | {one.speed_up:.2f}×"
    return f"| {one.title} | {one.ratio:.0%} | {times} | {one.launches:.0f} |"
