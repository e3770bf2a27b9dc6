"""Forecasts with other guidance scales: python -m benchmarks.guidance emoji-sdxl --pairs 100.

Each scale is compared with the full image of the same scale. Appends one line per image to `results/guidance.csv`; what
is in the file is not generated again. `--table` prints what the file holds. The tolerance is that of `apply(pipe)`
unless others are given. `--tuning` generates from the prompts and seeds that settings are chosen by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles

import torch
from rich.progress import track

from benchmarks.fidelity import PROMISED_PAIRS, pairs_of, pairs_parser, trials_of
from tomadiff import Forecast
from tomadiff.evaluation.runs import rows
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.tune.trials import Pair
from tomadiff.steps.recommend import Recommended
from tomadiff.steps.run import Run

FILES = ("guidance.csv", "tuning-guidance.csv")
SCALES = {"emoji-sdxl": (1.0, 2.0, 3.0, 5.0, 7.5), "emoji-flux": (1.0, 2.5, 4.0)}  # each model's own is among them


@dataclass(frozen=True)
class Task:
    """Images of one pipeline."""

    model: str
    steps: int
    pairs: Sequence[Pair]

    def run(self, path: Path, scale: float, tolerances: Sequence[float]) -> None:
        """Generate what is missing for one scale."""
        about = {"model": self.model, "steps": self.steps, "guidance": scale}
        done = {tuple(row.values())[:6] for row in rows.read(path)}
        trials = trials_of(self.model, self.steps)
        trials.call = {**trials.call, "guidance_scale": scale}
        for prompt, seed in track(self.pairs, description=f"{self.model}, guidance {scale:g}"):
            for tolerance in tolerances or [self.recommended(scale)]:
                key = {**about, "tolerance": tolerance, "prompt": prompt.text, "seed": seed}
                if tuple(map(str, key.values())) not in done:
                    found = trials.compare([(prompt, seed)], Variant("forecast", forecast=Forecast(tolerance)))[0]
                    figures = {name: float(f"{found[name]:.5g}") for name in ("computed", "mse", "psnr")}
                    rows.append(path, {**key, **figures})

    def recommended(self, scale: float) -> float:
        """The tolerance of ``apply(pipe)``; emoji-flux takes its guidance as an input, so nothing grows with it."""
        guidance = scale if self.model == "emoji-sdxl" else 1.0
        return Recommended().of_run(Run(self.steps, guidance=guidance)).tolerance


def table(path: Path) -> Iterator[str]:
    """One line of Markdown for each scale and tolerance."""
    found: dict[tuple[str, int, float, float], list[rows.Row]] = {}
    for row in rows.read(path):
        key = row["model"], int(row["steps"]), float(row["guidance"]), float(row["tolerance"])
        found.setdefault(key, []).append(row)
    yield "| model | steps | guidance | tolerance | steps computed | PSNR, median | 19 of 20 exceed | lowest | pairs |"
    yield "|---|---|---|---|---:|---:|---:|---:|---:|"
    for (model, steps, scale, tolerance), own in sorted(found.items(), reverse=True):
        near = [float(row["psnr"]) for row in own]
        least = quantiles(near, n=20, method="inclusive")[0] if near[1:] else near[0]
        computed = fmean(float(row["computed"]) for row in own)
        distances = f"{median(near):.1f} dB | {least:.1f} dB | {min(near):.1f} dB"
        yield f"| {model} | {steps} | {scale:g} | {tolerance:g} | {computed:.1%} | {distances} | {len(own)} |"


def main(given: Sequence[str] | None = None) -> None:
    """Generate, and print the table."""
    parser = pairs_parser(__doc__, 100, shows_table=True)
    parser.add_argument(
        "models", nargs="*", choices=[*SCALES, list(SCALES)], default=list(SCALES), help="default: both"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--scales", type=float, nargs="*")
    parser.add_argument("--tolerances", type=float, nargs="*")
    parser.add_argument("--tuning", action="store_true", help="other prompts and seeds, which settings are chosen by")
    arguments = parser.parse_args(given)
    path = arguments.results / FILES[arguments.tuning]
    if not arguments.table:
        torch.set_num_threads(arguments.threads)
        pairs = pairs_of(arguments.pairs, PROMISED_PAIRS if arguments.tuning else 0)
        for model in arguments.models:
            for scale in arguments.scales or SCALES[model]:
                Task(model, arguments.steps, pairs).run(path, scale, arguments.tolerances)
    print("\n".join(table(path)))


if __name__ == "__main__":
    main()
