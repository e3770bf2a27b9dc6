"""``tomadiff bench``: what merging saves on this machine, in seconds, FLOPs, launches and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.cli.errors import exit_if_failed
from tomadiff.cli.tables import print_table
from tomadiff.errors import SettingError
from tomadiff.utils.writing import require_output

if TYPE_CHECKING:
    from tomadiff.evaluation.runs.failures import Failures
    from tomadiff.evaluation.runs.journal import Journal
    from tomadiff.evaluation.timing.latency import Measurement
    from tomadiff.evaluation.timing.workloads import Workload

RANDOM = "Its weights are random: times and counts are those of the real model, images would be noise."


Model = Annotated[
    str | None, typer.Option("--model", "-m", help="As of tomadiff generate; default: emoji-sdxl.", show_default=False)
]
Arch = Annotated[
    str | None, typer.Option(help="sdxl, flux, sd3, pixart or sd15 in full size with random weights; one step.")
]
Sizes = Annotated[str | None, typer.Option("--size", help="Sides in pixels: 512 or 512,1024. Default: its own.")]
Methods = Annotated[str, typer.Option("--methods", help="With commas between: toma,tomesd. A wrong name lists all.")]
Ratios = Annotated[str | None, typer.Option("--ratios", help="Shares of tokens removed; default: 0.25,0.5,0.75.")]
Forecasts = Annotated[
    str, typer.Option("--forecast", help="Of pipelines: tolerances of forecast steps, with each method: 0,0.05.")
]
Rounds = Annotated[int, typer.Option(min=1, help="How often everything is timed.")]
Samples = Annotated[
    int | None, typer.Option(min=1, help="With --arch: samples per call; 1 if not given, with guidance 2.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: torch's own.")]


def bench(
    model: Model = None,
    arch: Arch = None,
    sizes: Sizes = None,
    depth: options.Depth = None,
    methods: Methods = "toma",
    ratios: Ratios = None,
    forecasts: Forecasts = "0",
    rounds: Rounds = 5,
    steps: options.Steps = None,
    batch: Samples = None,
    threads: Threads = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
    wide: options.Wide = False,
    table: options.Csv = None,
    as_json: options.Json = False,
) -> None:
    """Time the model in full and with methods in interleaved rounds, and count what they compute and hold.

    \b
    tomadiff bench
    tomadiff bench --methods toma,tomesd,todo --ratios 0.5 --rounds 20 --csv bench.csv
    tomadiff bench --model ./my-pipeline --size 512,1024 --steps 20
    tomadiff bench --arch flux --size 1024 --depth 2 --dtype bfloat16

    A pipeline is timed over whole images; --arch over the mean step of a window of ten, put together from one
    selecting, one reweighing and one plain step. With --csv it may be killed at any moment: the same command goes on
    with the rounds it has finished.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    _require_either(model, arch, {"--steps": steps}, {"--depth": depth, "--batch": batch})
    if threads is not None:
        torch.set_num_threads(threads)
    wanted, how = _wanted(methods, ratios, forecasts, arch), (device, dtype, allow_pickle)
    if table is not None:
        require_output(table, "--csv", make_folder=True)
    model, samples = model or "emoji-sdxl", batch or 1
    made = _architectures(arch, sizes, depth, samples, how) if arch else _pipelines(model, sizes, steps, how)
    journal = _journal(table, arch=arch, depth=depth, steps=steps, batch=samples, device=device, dtype=dtype)
    _run(made, wanted, rounds, journal, bool(arch), table, as_json, wide)


def _run(
    made: Iterator[tuple[Any, Workload]],
    wanted: tuple[list[str], list[float], tuple[float, ...]],
    rounds: int,
    journal: Journal,
    random: bool,
    path: Path | None,
    as_json: bool,
    wide: bool,
) -> None:
    """Time every workload, and show its table as soon as it is there."""
    from tomadiff.evaluation.runs.failures import Failures

    console, failures = Console(stderr=as_json, soft_wrap=True), Failures()
    rows: list[dict[str, Any]] = []
    for size, workload in made:
        measured = _measured(workload, *wanted, rounds, console, journal, failures)
        if not as_json:
            _show(console, workload, measured, wide)
        rows += [{"model": workload.title, "size": size, **one.as_row()} for one in measured]
    _tell(rows, random, path, as_json, console)
    journal.close()
    exit_if_failed(failures)


# ---------------------------------------------------------------------------------------------- what to time
def _require_either(
    model: str | None, arch: str | None, of_models: dict[str, int | None], of_archs: dict[str, int | None]
) -> None:
    """Raise for both at once, and for what only the other one takes."""
    if model is not None and arch is not None:
        raise SettingError(f"Give --model {model} to time a pipeline or --arch {arch} to time one step, not both.")
    given = "--model" if arch is None else "--arch"
    for name, value in (of_archs if arch is None else of_models).items():
        if value is not None:
            raise SettingError(f"{name} does not go with {given}; leave it out.")


def _wanted(
    methods: str, ratios: str | None, forecasts: str, arch: str | None
) -> tuple[list[str], list[float], tuple[float, ...]]:
    tolerances = options.read_forecasts(forecasts)
    if arch and any(tolerances):
        raise SettingError("--arch times one step; forecasts leave steps out, so give --model instead.")
    names, shares = options.read_names(methods), options.read_ratios(ratios or "0.25,0.5,0.75")
    for ratio in shares if ratios is not None else ():
        options.require_ratio(names, ratio)
    return names, shares, tolerances


def _sides(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    names = options.read_names(text)
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise SettingError(f"size={text!r} is not possible; give sides in pixels such as 512,1024.")
    return [int(name) for name in names]


def _pipelines(
    model: str, sizes: str | None, steps: int | None, how: tuple[Any, ...]
) -> Iterator[tuple[Any, Workload]]:
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.generate import call_of
    from tomadiff.evaluation.timing.workloads import WholeImage

    pipe = models.load(model, *how)
    for side in _sides(sizes):
        call = call_of(model, pipe, steps=steps, size=None if side is None else (side, side))
        shown = side or call.get("width")
        yield shown, WholeImage(pipe, f"{model}{f' at {shown}²' if shown else ''}", call)


def _architectures(
    arch: str, sizes: str | None, depth: int | None, batch: int, how: tuple[Any, ...]
) -> Iterator[tuple[Any, Workload]]:
    from tomadiff.evaluation.timing.workloads import architecture_steps

    return architecture_steps(arch, _sides(sizes), depth, batch, *how[:2])


def _measured(
    workload: Workload,
    methods: Sequence[str],
    ratios: Sequence[float],
    forecasts: Sequence[float],
    rounds: int,
    console: Console,
    journal: Journal,
    failures: Failures,
) -> list[Measurement]:
    from tomadiff.evaluation.runs.tasks import bar
    from tomadiff.evaluation.timing.latency import contenders, measure

    field, refused = contenders(methods, ratios, workload, forecasts)
    for line in refused:
        console.print(f"Left out {line}", style="yellow", markup=False)
    with bar(len(field) * (rounds + 1), doing="timing") as advance:
        return measure(workload, field, rounds, lambda: advance(1), journal, failures)


def _journal(table: Path | None, **asked: Any) -> Journal:
    from tomadiff.evaluation.runs.journal import Journal

    return Journal(table, asked)


# ---------------------------------------------------------------------------------------------- tell
HEADINGS = (
    "method",
    "merged",
    "min s",
    "median s",
    "spread",
    "speed-up",
    "GFLOPs",
    "launches",
    "peak MiB",
    "plans KiB",
)


def _show(console: Console, workload: Workload, measured: Sequence[Measurement], wide: bool) -> None:
    rows = []
    for one in measured:
        times = f"{one.least:.3f}", f"{one.median:.3f}", f"{one.spread:.0%}", f"{one.speed_up:.2f}×"
        counts = f"{one.flops / 1e9:.1f}", f"{one.launches:.0f}", f"{one.peak_bytes / 2**20:.1f}"
        rows.append([one.title, f"{one.ratio:.0%}", *times, *counts, f"{one.plan_bytes / 1024:.0f}"])
    print_table(console, HEADINGS, rows, f"{workload.title}: one {workload.unit}", keys=2, wide=wide)
    for one in measured[1:]:
        if len(one.parts) > 1:
            parts = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in one.parts.items())
            console.print(f"{one.title} {one.ratio:.0%}: {parts}", markup=False)


def _tell(rows: list[dict[str, Any]], random: bool, path: Path | None, as_json: bool, console: Console) -> None:
    from tomadiff.evaluation.runs.environment import environment

    if path is not None:
        _write_csv(rows, path)
        console.print(f"The numbers are in [bold]{path}[/bold]")
    if as_json:
        weights = "random" if random else "trained"
        typer.echo(json.dumps({"weights": weights, "machine": environment(), "rows": rows}, indent=2))
    elif random:
        console.print(RANDOM)


def _write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """One line per measurement, without what is a list of its own."""
    from tomadiff.evaluation.runs.rows import write

    flat = [{name: value for name, value in row.items() if name not in ("seconds", "parts")} for row in rows]
    write(path, flat)
