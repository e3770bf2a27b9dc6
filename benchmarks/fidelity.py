"""How near merged pictures are to unmerged ones, at which cost: python -m benchmarks.fidelity sdxl knobs --pairs 24.

Draws the same prompts and seeds with the unmerged model and with every candidate of a set (see `candidates.py`) on an
embedded, trained pipeline, and appends one line per picture to `results/fidelity-<model>.csv`. Operations are counted
over one whole picture, planning included. What is in the file already is not drawn again, so a killed run goes on.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from benchmarks.candidates import SETS, Candidate
from tomadiff import embedded
from tomadiff.evaluate.features import Clip, image_features, to_pixels
from tomadiff.evaluate.generate import draw_together
from tomadiff.evaluate.metrics import cosine_distance, mse, psnr, ssim
from tomadiff.evaluate.ops import flop_counter
from tomadiff.evaluate.prompts import Prompt, emoji_prompts

RESULTS = Path(__file__).parent / "results"
TOGETHER = {"sdxl": 4, "flux": 1}  # pictures of a batch; Flux shares destinations over a batch, so its are drawn alone

Pair = tuple[Prompt, int]


@dataclass(frozen=True)
class Row:
    """One picture of a candidate against the unmerged one.

    Attributes:
        cost: operations of the picture, as a share of the unmerged one's.
        mse: of pixels from 0 to 255.
        judge: ``1 − cos`` of emoji-judge's features.
    """

    model: str
    steps: int
    candidate: str
    prompt: str
    seed: int
    cost: float
    mse: float
    psnr: float
    ssim: float
    judge: float


class Bench:
    """Draws and compares on one embedded pipeline."""

    def __init__(self, model: str, steps: int) -> None:
        self.model, self.steps = model, steps
        self.pipe = embedded.load(model)
        self.pipe.set_progress_bar_config(disable=True)
        self.call = {**embedded.settings(model), "num_inference_steps": steps}
        self._unmerged: dict[tuple[tuple[str, int], ...], list[Any]] = {}

    @cached_property
    def judge(self) -> Clip:
        """The network that was trained with the pipelines, to look at their pictures."""
        return Clip.open(str(embedded.folder("judge")), "cpu")

    def draw(self, pairs: Sequence[Pair], candidate: Candidate | None = None) -> list[Any]:
        """Pictures, unmerged without a candidate."""
        made = None if candidate is None else (candidate.method, candidate.schedule)
        prompts, seeds = [prompt for prompt, _ in pairs], [seed for _, seed in pairs]
        return draw_together(self.pipe, prompts, seeds, self.call, made)[0]

    def unmerged(self, pairs: tuple[Pair, ...]) -> list[Any]:
        """What pictures are compared with; drawn once."""
        key = tuple((prompt.text, seed) for prompt, seed in pairs)
        if key not in self._unmerged:
            self._unmerged[key] = self.draw(pairs)
        return self._unmerged[key]

    def flops(self, candidate: Candidate | None = None) -> int:
        """Operations of one whole picture."""
        with flop_counter() as counter:
            self.draw([(Prompt("a fox on a blue background"), 0)], candidate)
        return int(counter.get_total_flops())

    @cached_property
    def full(self) -> int:
        """Operations of one unmerged picture."""
        return self.flops()

    def compare(self, pairs: tuple[Pair, ...], candidate: Candidate, cost: float) -> Iterator[Row]:
        """Draw ``pairs`` with ``candidate``, whose cost is known, and measure."""
        drawn, wanted = self.draw(pairs, candidate), self.unmerged(pairs)
        pixels, targets = to_pixels(drawn), to_pixels(wanted)
        seen, meant = image_features(self.judge, drawn), image_features(self.judge, wanted)
        figures = mse(pixels, targets), psnr(pixels, targets), ssim(pixels, targets), cosine_distance(seen, meant)
        for (prompt, seed), *numbers in zip(pairs, *figures, strict=True):
            rounded = [float(f"{float(number):.5g}") for number in numbers]
            yield Row(self.model, self.steps, candidate.name, prompt.text, seed, round(cost, 4), *rounded)


def pairs_of(count: int) -> list[Pair]:
    """Prompts of the embedded list in turn, a new seed each time round."""
    prompts = emoji_prompts()
    return [(prompts[place % len(prompts)], place // len(prompts)) for place in range(count)]


def batches(pairs: Sequence[Pair], size: int) -> Iterator[tuple[Pair, ...]]:
    rest = iter(pairs)
    while part := tuple(islice(rest, size)):
        yield part


def done(path: Path) -> dict[tuple[str, ...], float]:
    """What is finished, and the cost that was counted for it."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        return {
            (row["steps"], row["candidate"], row["prompt"], row["seed"]): float(row["cost"])
            for row in csv.DictReader(lines)
        }


def append(path: Path, rows: Sequence[Row]) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, [field.name for field in fields(Row)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
        lines.flush()
        os.fsync(lines.fileno())


def run(model: str, sets: Sequence[str], pairs: int, steps: int) -> None:
    """Draw what is missing, batch by batch, so that an unfinished run holds whole comparisons."""
    path = RESULTS / f"fidelity-{model}.csv"
    bench, finished = Bench(model, steps), done(path)
    wanted = list({one.name: one for name in sets for one in SETS[name](steps)}.values())
    costs = {candidate: cost for (at, candidate, *_), cost in finished.items() if at == str(steps)}
    parts = list(batches(pairs_of(pairs), TOGETHER[model]))
    for part, candidate in track([(part, one) for part in parts for one in wanted], description=f"{model}, {steps}"):
        keys = [(str(steps), candidate.name, prompt.text, str(seed)) for prompt, seed in part]
        if all(key in finished for key in keys):
            continue
        if candidate.name not in costs:
            costs[candidate.name] = bench.flops(candidate) / bench.full
        append(path, list(bench.compare(part, candidate, costs[candidate.name])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[name for name in embedded.available() if name != "judge"])
    parser.add_argument("sets", nargs="+", choices=list(SETS))
    parser.add_argument("--pairs", type=int, default=24, help="prompts and seeds")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run(arguments.model, arguments.sets, arguments.pairs, arguments.steps)


if __name__ == "__main__":
    main()
