"""What do the kernels occupy, and what do they gain?

Every kernel is compiled for four generations of GPUs, present or not, and what the assembler says of it is written to
``benchmarks/results/kernels_aot.csv``. Where there is a GPU, every kernel is also timed against the plain torch that
defines it, on the tokens of SDXL's finest level at 1024 × 1024 pixels, into ``benchmarks/results/kernels.csv``.

Run with ``python -m benchmarks.kernels``; needs Triton.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tomadiff
from benchmarks.ahead_of_time import ARCHITECTURES, occupied, programs
from tomadiff import Grid, Tiles, ToMA
from tomadiff.evaluation.runs.rows import write
from tomadiff.kernels import LONGEST_PLANNED

GRID, CHANNELS, BATCH, RATIO = Grid(64, 64), 640, 2, 0.5
REGIONS = (Tiles(4), Tiles(8), Tiles(16))
RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


# ---------------------------------------------------------------------------------------------- without a GPU
def rows_ahead_of_time(dtypes: tuple[str, ...], architectures: Sequence[int]) -> Iterator[Row]:
    """One row per kernel, region length, dtype and architecture."""
    for program in programs(dtypes):
        for architecture in architectures:
            found = occupied(program, architecture)
            yield {
                "kernel": program.name,
                "tokens_per_region": program.tokens,
                "dtype": program.dtype,
                "architecture": f"sm_{architecture}",
                "warps": program.warps,
                "registers": found.registers,
                "spilled_bytes": found.spills,
                "shared_bytes": found.shared,
            }


# ---------------------------------------------------------------------------------------------- with one
def rows_on_gpu(dtype: torch.dtype = torch.float16) -> Iterator[Row]:
    """Milliseconds of every kernel and of its definition."""
    tokens = torch.randn(BATCH, GRID.tokens, CHANNELS, device="cuda", dtype=dtype)
    for cut in REGIONS:
        for name, call in contests(cut, tokens):
            plain, fused = (
                triton.testing.do_bench(lambda way=way, call=call: call(way)) for way in ("torch", "triton")
            )
            yield {
                "kernel": name,
                "tokens_per_region": cut.layout(GRID).length,
                "dtype": str(dtype).removeprefix("torch."),
                "torch_ms": f"{plain:.4f}",
                "triton_ms": f"{fused:.4f}",
                "times_faster": f"{plain / fused:.2f}",
                "gpu": torch.cuda.get_device_name(),
            }


def contests(cut: Tiles, tokens: Tensor) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Every kernel as a function of the way to do it, ``"torch"`` or ``"triton"``."""
    ways = {"torch": "torch", "triton": "auto"}  # plain torch plans for regions of more than 64 tokens
    plans = {way: ToMA.tile(RATIO, regions=cut, kernels=own).plan(tokens, GRID) for way, own in ways.items()}
    merged = plans["torch"].merge(tokens)
    if cut.side is not None and cut.side**2 <= LONGEST_PLANNED:
        yield "local_plan", lambda way: ToMA(RATIO, regions=cut, kernels=way).plan(tokens, GRID)
    yield "merge", lambda way: plans[way].merge(tokens)
    yield "unmerge_add", lambda way: plans[way].unmerge_add(merged, tokens)


# ---------------------------------------------------------------------------------------------- results
def with_environment(rows: Iterator[Row]) -> list[Row]:
    """Rows with the versions they were made with."""
    versions = {"triton": triton.__version__, "torch": torch.__version__, "tomadiff": tomadiff.__version__}
    return [{**row, **versions, "date": datetime.now(UTC).date().isoformat()} for row in rows]


def table(title: str, rows: Sequence[Row], columns: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column.replace("_", " "))
    for row in rows:
        shown.add_row(*(str(row[column]) for column in columns))
    return shown


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the kernels occupy, and what they gain.")
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "bf16", "fp32"])
    parser.add_argument("--architectures", nargs="+", type=int, default=ARCHITECTURES)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    return parser.parse_args()


def main() -> None:
    """Compile for every GPU, and time on the one that is here."""
    given, console = arguments(), Console()
    rows = with_environment(rows_ahead_of_time(tuple(given.dtypes), given.architectures))
    write(given.out / "kernels_aot.csv", rows)
    console.print(table("Compiled ahead of time", rows, list(rows[0])[:8]))
    if not torch.cuda.is_available():
        console.print("No GPU here: nothing was timed, and kernels.csv is left as it is.")
        return
    with torch.inference_mode():
        timed = with_environment(rows_on_gpu())
    write(given.out / "kernels.csv", timed)
    console.print(
        table(f"{GRID} tokens × {CHANNELS} channels, batch {BATCH}, ratio {RATIO}", timed, list(timed[0])[:6])
    )


if __name__ == "__main__":
    main()
