"""What does a plan cost, beside the transformer block it is made for?

The tokens are those of SDXL's finest level at 1024 × 1024 pixels: 64 × 64 of 640 channels. The block is diffusers' own,
with self-attention and a GEGLU feed-forward. Everything is timed in turn, round after round, so that a busy machine is
equally busy for all; minima are compared, since noise only ever adds.

Run by ``make bench``. Prints a table, writes ``benchmarks/results/planning.csv`` and fails if the promise is broken:
a plan in 64 tiles at ratio 0.5 costs less than 5 % of the block.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from diffusers.models.attention import BasicTransformerBlock
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.machine import environment
from tomadiff import Grid, Stripes, Tiles, ToMA
from tomadiff.evaluation.runs.rows import write
from tomadiff.evaluation.runs.synthetic_image import synthetic_image, to_tokens
from tomadiff.evaluation.runs.timer import interleaved

GRID, CHANNELS, HEADS, RATIO = Grid(64, 64), 640, 10, 0.5
REGIONS = (Tiles(8), Tiles(4), Stripes(64))
PROMISED, LIMIT = ("plan", Tiles(8)), 0.05
RESULTS = Path(__file__).parent / "results" / "planning.csv"


@dataclass
class Job:
    """One thing to time, and the seconds of its runs."""

    what: str
    regions: object
    call: Callable[[], object]
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Milliseconds of the fastest run."""
        return min(self.seconds) * 1000

    @property
    def middle(self) -> float:
        """Milliseconds of the median run."""
        return median(self.seconds) * 1000


def sdxl_block() -> nn.Module:
    """A transformer block of SDXL's width 640, without cross-attention, in float32."""
    block: nn.Module = BasicTransformerBlock(
        dim=CHANNELS,
        num_attention_heads=HEADS,
        attention_head_dim=CHANNELS // HEADS,
        cross_attention_dim=None,
        activation_fn="geglu",
    )
    return block.eval()


def image_tokens() -> Tensor:
    """``(1, 4096, 640)`` tokens of a synthetic image, alike where the image is smooth as a model's are."""
    tokens = to_tokens(synthetic_image(), GRID.height, CHANNELS)
    return tokens / tokens.std()


def jobs(tokens: Tensor) -> list[Job]:
    """The block, then everything a plan does, for all regions."""
    block = sdxl_block()
    return [Job("block", None, lambda: block(tokens))] + [job for cut in REGIONS for job in jobs_of(cut, tokens)]


def jobs_of(cut: Tiles | Stripes, tokens: Tensor) -> list[Job]:
    """Making, reweighing and using a plan in the regions ``cut``."""
    method = ToMA.tile(RATIO, regions=cut)
    plan = method.plan(tokens, GRID)
    merged = plan.merge(tokens)
    return [
        Job("plan", cut, lambda: method.plan(tokens, GRID)),
        Job("reweigh", cut, lambda: method.reweigh(plan, tokens)),
        Job("merge", cut, lambda: plan.merge(tokens)),
        Job("unmerge", cut, lambda: plan.unmerge(merged)),
    ]


def run_in_turn(contenders: Sequence[Job], runs: int, warmup: int = 2) -> None:
    """Time every job once per round; the first rounds include start-up and do not count."""
    times = interleaved({place: job.call for place, job in enumerate(contenders)}, "cpu", runs, warmup)
    for place, job in enumerate(contenders):
        job.seconds += times[place].runs


def share(job: Job, block: Job) -> float:
    """What part of the block's time the job takes."""
    return job.best / block.best


def name(cut: object) -> str:
    """``Tiles(8)``: regions as one would write them."""
    return f"{type(cut).__name__}({getattr(cut, 'side', None) or getattr(cut, 'length', None)})" if cut else "–"


def table(timed: Sequence[Job], machine: dict[str, str]) -> Table:
    """The result for people."""
    title = f"{GRID} tokens × {CHANNELS} channels, ratio {RATIO}, float32"
    shown = Table(
        title=title,
        caption=f"{machine['cpu']}, threads used: {machine['threads']}",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("", "regions", "best", "median", "of the block"):
        shown.add_column(heading, justify="right" if heading in ("best", "median", "of the block") else "left")
    for job in timed:
        part = f"{share(job, timed[0]):.2%}"
        shown.add_row(job.what, name(job.regions), f"{job.best:.2f} ms", f"{job.middle:.2f} ms", part)
    return shown


def write_csv(path: Path, timed: Sequence[Job], machine: dict[str, str]) -> None:
    """The result for programs: one row per job, each with all that is needed to read it alone."""
    setting = {"tokens": GRID.tokens, "channels": CHANNELS, "ratio": RATIO, "batch": 1, "dtype": "float32"}
    rows = [
        {
            "what": job.what,
            "regions": name(job.regions),
            "best_ms": f"{job.best:.3f}",
            "median_ms": f"{job.middle:.3f}",
            "share_of_block": f"{share(job, timed[0]):.5f}",
            "runs": len(job.seconds),
            **setting,
            **machine,
        }
        for job in timed
    ]
    write(path, rows)


def promised(timed: Sequence[Job]) -> Job:
    """The job that the promise is about."""
    return next(job for job in timed if (job.what, job.regions) == PROMISED)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a plan costs, against one SDXL-width transformer block.")
    parser.add_argument("--runs", type=int, default=12, help="rounds that count")
    parser.add_argument("--threads", type=int, default=1, help="of torch; on a busy machine more than 1 mostly waits")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV goes")
    return parser.parse_args()


def main() -> int:
    """Measure, show, write; 1 if the promise is broken."""
    given = arguments()
    torch.set_num_threads(given.threads)
    with torch.inference_mode():
        timed = jobs(image_tokens())
        run_in_turn(timed, given.runs)
    machine = environment()
    write_csv(given.out, timed, machine)
    part = share(promised(timed), timed[0])
    console = Console()
    console.print(table(timed, machine))
    kept = "kept" if part < LIMIT else "BROKEN"
    console.print(
        f"A plan in {name(PROMISED[1])} costs {part:.2%} of the block; less than {LIMIT:.0%} promised: {kept}."
    )
    return int(part >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
