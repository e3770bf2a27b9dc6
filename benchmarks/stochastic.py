"""Forecasts beside samplers that add noise: python -m benchmarks.stochastic --pairs 50.

Generates tuning pairs on emoji-sdxl with every stochastic scheduler that diffusers has for flow models, with a forecast
and, where a step was forecast, without. Appends one line per image to `results/stochastic.csv`; what is in the file is
not generated again. An image whose steps were all computed is the full one, so its PSNR is infinite. `--table` prints
what the file holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
from rich.progress import track
from torch import Tensor

import tomadiff
from benchmarks.fidelity import PROMISED_PAIRS, pairs_of, pairs_parser, trials_of
from tomadiff.evaluation.metrics.distances import psnr
from tomadiff.evaluation.metrics.features import to_pixels
from tomadiff.evaluation.runs import rows
from tomadiff.evaluation.tune.trials import Pair, Trials

FILE = "stochastic.csv"
LOWEST = 25.0  # dB that no image may fall below
SHIFT = 3.0  # of the noise levels of emoji-sdxl


class _Unscaled:
    """What a pipeline of SDXL asks of a scheduler beyond what flow models need."""

    init_noise_sigma = 1.0

    def scale_model_input(self, sample: Tensor, _: Any) -> Tensor:
        return sample


class StochasticEuler(_Unscaled, diffusers.FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """For a pipeline of SDXL."""


class LCM(_Unscaled, diffusers.FlowMatchLCMScheduler):  # type: ignore[misc]
    """For a pipeline of SDXL."""


# Ancestral samplers and LCM of diffusers do not take flow models; those that do are the counterparts of each.
SCHEDULERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "SDE DPM++ 2M": (
        20,
        lambda config: diffusers.DPMSolverMultistepScheduler.from_config(config, algorithm_type="sde-dpmsolver++"),
    ),
    "Euler, stochastic": (
        20,
        lambda _: StochasticEuler(shift=SHIFT, stochastic_sampling=True),
    ),
    "LCM": (8, lambda _: LCM(shift=SHIFT)),
}


def compare(trials: Trials, pair: Pair, tolerance: float) -> dict[str, Any]:
    """Generate with the forecast, and in full if it made a difference."""
    with tomadiff.apply(trials.pipe, forecast=tolerance) as patch:
        image = trials.generate([pair])[0]
        pattern = patch.pattern
    distance = math.inf
    if pattern.forecast:
        distance = float(psnr(to_pixels([image]), to_pixels(trials.generate([pair])))[0])
    return {"psnr": round(distance, 3), "computed": len(pattern.computed), "forecast": len(pattern.forecast)}


def run(path: Path, pairs: Sequence[Pair], tolerance: float) -> None:
    """Generate what is missing."""
    done = {(row["scheduler"], row["tolerance"], row["prompt"], row["seed"]) for row in rows.read(path)}
    for name, (steps, make) in SCHEDULERS.items():
        trials = trials_of("emoji-sdxl", steps)
        trials.pipe.scheduler = make(trials.pipe.scheduler.config)
        trials.pipe.set_progress_bar_config(disable=True)
        for pair in track(pairs, description=name):
            prompt, seed = pair
            if (name, str(tolerance), prompt.text, str(seed)) not in done:
                about = {"scheduler": name, "steps": steps, "tolerance": tolerance, "prompt": prompt.text, "seed": seed}
                rows.append(path, {**about, **compare(trials, pair, tolerance)})


def table(path: Path) -> Iterator[str]:
    """One line of Markdown for each scheduler and tolerance."""
    found: dict[tuple[str, str, str], list[rows.Row]] = {}
    for row in rows.read(path):
        found.setdefault((row["scheduler"], row["steps"], row["tolerance"]), []).append(row)
    yield "| scheduler | steps | tolerance | images | steps computed | images with a forecast step | lowest PSNR |"
    yield "|---|---|---|---|---|---|---|"
    for (name, steps, tolerance), own in found.items():
        computed = sum(int(row["computed"]) for row in own) / sum(
            int(row["computed"]) + int(row["forecast"]) for row in own
        )
        changed = sum(int(row["forecast"]) > 0 for row in own)
        lowest = min(float(row["psnr"]) for row in own)
        shown = "the full image" if math.isinf(lowest) else f"{lowest:.1f} dB"
        yield f"| {name} | {steps} | {tolerance} | {len(own)} | {computed:.1%} | {changed} | {shown} |"


def main(given: Sequence[str] | None = None) -> None:
    parser = pairs_parser(__doc__, 50, shows_table=True)
    parser.add_argument("--tolerance", type=float, default=0.05)
    arguments = parser.parse_args(given)
    path = arguments.results / FILE
    if not arguments.table:
        torch.set_num_threads(arguments.threads)
        run(path, pairs_of(arguments.pairs, PROMISED_PAIRS), arguments.tolerance)
    print("\n".join(table(path)))
    low = [row for row in rows.read(path) if float(row["psnr"]) < LOWEST]
    if low:
        raise SystemExit(f"{len(low)} images are below {LOWEST:g} dB.")


if __name__ == "__main__":
    main()
