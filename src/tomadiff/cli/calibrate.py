"""``tomadiff calibrate``: measure this machine, and write its constants into a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.errors import require_choice

if TYPE_CHECKING:
    import torch

    from tomadiff.cost import Hardware

_ROUNDS = 3
_STEADY = 1.25  # between the fastest and the slowest round; beyond, something else was running
_OWN_SHARE = 0.9  # of a core's time that this process gets if nothing else runs


def calibrate(
    device: options.Device = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU; default: as many as torch uses.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; default: calibration.json in your settings folder.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure how fast this machine is, for a few seconds, and write that into a file.

    \b
    tomadiff calibrate
    tomadiff calibrate --device cuda --dtype float16 --out mine.json
    export TOMADIFF_CALIBRATION=mine.json

    The guard and speedup= decide by constants that come with tomadiff. Where TOMADIFF_CALIBRATION names this file, they
    decide by it instead, and the same seed may give another image than without. Nothing else ever measures.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    import torch

    from tomadiff.cost import calibration
    from tomadiff.evaluation.runs.models import device_of
    from tomadiff.utils.writing import require_output, write_whole

    require_choice("dtype", dtype, ("float32", "float16", "bfloat16"))
    path = (out or Path(typer.get_app_dir("tomadiff")) / "calibration.json").expanduser().absolute()
    require_output(path, "--out", make_folder=True)
    known = calibration.read(path) if path.exists() else {}
    if threads is not None:
        torch.set_num_threads(threads)
    where, kind = device_of(device), getattr(torch, dtype)
    machine, disturbed = _measured(where, kind)
    entry = calibration.Entry.of(machine, where, kind)
    write_whole(path, calibration.as_text({**known, entry.key: entry}.values()))
    if as_json:
        typer.echo(json.dumps({"path": str(path), "disturbed": disturbed, "variable": calibration.VARIABLE}, indent=2))
        return
    _tell(path, machine, disturbed, calibration.VARIABLE)


def _measured(device: torch.device, dtype: torch.dtype) -> tuple[Hardware, bool]:
    """The round with the middle rate of products, and whether something else was running meanwhile."""
    from tomadiff.cost import Hardware

    began, computed = time.perf_counter(), time.process_time()
    rounds = sorted(
        (Hardware.measure(device, dtype) for _ in range(_ROUNDS)), key=lambda one: one.rate("matmul", dtype)
    )
    own_share = (time.process_time() - computed) / (time.perf_counter() - began)
    unsteady = rounds[-1].rate("matmul", dtype) > _STEADY * rounds[0].rate("matmul", dtype)
    return rounds[_ROUNDS // 2], unsteady or (device.type == "cpu" and own_share < _OWN_SHARE)


def _tell(path: Path, machine: Hardware, disturbed: bool, variable: str) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"Measured {machine.name}; wrote {path}", markup=False)
    if disturbed:
        console.print("Something else was running, so the figures are too low. Do it again when the machine is idle.")
    console.print(f"To use it: export {variable}={path}", markup=False)
