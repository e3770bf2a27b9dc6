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
from itertools import islice
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.candidates import SETS
from tomadiff import embedded
from tomadiff.evaluate.features import Clip
from tomadiff.evaluate.prompts import emoji_prompts
from tomadiff.evaluate.trials import Candidate, Pair, Trials

RESULTS = Path(__file__).parent / "results"
TOGETHER = {"sdxl": 4, "flux": 1}  # pictures of a batch; Flux shares destinations over a batch, so its are drawn alone


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


def trials_of(model: str, steps: int) -> Trials:
    """Trials on an embedded pipeline, judged by the network that was trained with it."""
    call = {**embedded.settings(model), "num_inference_steps": steps}
    return Trials(embedded.load(model), call, Clip.open(str(embedded.folder("judge")), "cpu"))


def rows_of(
    model: str, steps: int, pairs: Sequence[Pair], candidate: Candidate, cost: float, trials: Trials
) -> list[Row]:
    """Draw ``pairs`` with ``candidate``, whose cost is known, and measure."""
    figures = [{name: float(f"{value:.5g}") for name, value in one.items()} for one in trials.compare(pairs, candidate)]
    return [
        Row(model, steps, candidate.name, prompt.text, seed, round(cost, 4), **numbers)
        for (prompt, seed), numbers in zip(pairs, figures, strict=True)
    ]


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
    trials, finished = trials_of(model, steps), done(path)
    wanted = list({one.name: one for name in sets for one in SETS[name](steps)}.values())
    costs = {candidate: cost for (at, candidate, *_), cost in finished.items() if at == str(steps)}
    parts = list(batches(pairs_of(pairs), TOGETHER[model]))
    for part, candidate in track([(part, one) for part in parts for one in wanted], description=f"{model}, {steps}"):
        keys = [(str(steps), candidate.name, prompt.text, str(seed)) for prompt, seed in part]
        if all(key in finished for key in keys):
            continue
        if candidate.name not in costs:
            costs[candidate.name] = trials.cost(parts[0][0], candidate)
        append(path, rows_of(model, steps, part, candidate, costs[candidate.name], trials))


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
