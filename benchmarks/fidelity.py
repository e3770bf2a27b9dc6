"""How near merged images are to unmerged ones, at which cost.

``python -m benchmarks.fidelity emoji-sdxl knobs --pairs 24``

Generates the same prompts and seeds with the unmerged model and with every candidate of a set (see `candidates.py`) on
an embedded, trained pipeline, and appends one line per image to `results/fidelity-<model>.csv`. FLOPs are counted over
one whole image, planning included (over a few, where they differ from image to image). What is in the file already is
not generated again unless its settings changed, so a killed run goes on. `results/fidelity-runs.csv` says on which
machine and with which versions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from rich.progress import track

from benchmarks.candidates import SETS, TUNING, Bench, adapts, digest
from benchmarks.machine import environment
from tomadiff import embedded
from tomadiff.evaluation.metrics.features import Clip
from tomadiff.evaluation.runs import rows
from tomadiff.evaluation.runs.dry_run import dry_run
from tomadiff.evaluation.runs.prompts import emoji_prompts
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.tune.trials import Pair, Trials

RESULTS = Path(__file__).parent / "results"
RUNS = "fidelity-runs.csv"
PROMISED_PAIRS = 100  # what must hold is shown on; settings are chosen on others
COUNTED = 8  # images whose FLOPs are counted where they differ
# Images of a batch; Flux shares destinations over a batch, so its are generated alone.
TOGETHER = {"emoji-sdxl": 4, "emoji-flux": 1}


@dataclass(frozen=True)
class Row:
    """One image of a candidate against the unmerged one.

    Attributes:
        settings: see :func:`benchmarks.candidates.digest`.
        cost: FLOPs of the image, as a share of the unmerged one's.
        mse: of pixels from 0 to 255.
        judge: ``1 − cos`` of emoji-judge's features.
    """

    model: str
    steps: int
    candidate: str
    settings: str
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
    return Trials(embedded.load(model), call, Clip.open(str(embedded.folder("emoji-judge")), "cpu"))


def rows_of(
    model: str, steps: int, pairs: Sequence[Pair], candidate: Variant, cost: float, trials: Trials
) -> list[Row]:
    """Generate ``pairs`` with ``candidate``, whose cost is known, and measure."""
    metrics = ("mse", "psnr", "ssim", "judge")
    figures = [{name: float(f"{one[name]:.5g}") for name in metrics} for one in trials.compare(pairs, candidate)]
    return [
        Row(model, steps, candidate.name, digest(candidate), prompt.text, seed, round(cost, 4), **numbers)
        for (prompt, seed), numbers in zip(pairs, figures, strict=True)
    ]


def pairs_of(count: int, first: int = 0) -> list[Pair]:
    """Prompts of the embedded list in turn, a new seed each time round, from the ``first`` on."""
    prompts = emoji_prompts()
    return [(prompts[place % len(prompts)], place // len(prompts)) for place in range(first, first + count)]


def batches(pairs: Sequence[Pair], size: int) -> Iterator[tuple[Pair, ...]]:
    rest = iter(pairs)
    while part := tuple(islice(rest, size)):
        yield part


def path_of(folder: Path, model: str, tuning: bool = False) -> Path:
    return folder / f"{'tuning' if tuning else 'fidelity'}-{model}.csv"


def key_of(steps: int, candidate: Variant, prompt: str, seed: int) -> tuple[str, ...]:
    return str(steps), candidate.name, digest(candidate), prompt, str(seed)


def done(path: Path) -> dict[tuple[str, ...], float]:
    """What is finished, and the cost that was counted for it."""
    names = ("steps", "candidate", "settings", "prompt", "seed")
    return {tuple(row[name] for name in names): float(row["cost"]) for row in rows.read(path)}


def bench_of(model: str, steps: int, trials: Trials, pair: Pair) -> Bench:
    """Costs by a dry run, which takes no image; only sets that ask for them pay for it."""
    dry = cache(lambda: dry_run(trials.pipe, *pair, trials.call))
    return Bench(model, steps, lambda candidate: dry().flops(candidate) / dry().flops(Variant()))


def counted(trials: Trials, candidate: Variant, pairs: Sequence[Pair]) -> float:
    """The share of FLOPs, of one image if all cost the same."""
    return fmean(trials.cost(pair, candidate) for pair in pairs[: COUNTED if adapts(candidate) else 1])


def note_run(folder: Path, sets: Sequence[str], pairs: int, trials: Trials, bench: Bench) -> None:
    """Write down what is generated with."""
    size, dtype = trials.call["height"], str(trials.pipe.dtype).removeprefix("torch.")
    generated = {"model": bench.model, "steps": bench.steps, "sets": " ".join(sets), "pairs": pairs}
    rows.append(folder / RUNS, {**generated, "size": size, "dtype": dtype, **environment()})


def run(model: str, sets: Sequence[str], count: int, steps: int, folder: Path = RESULTS, first: int = 0) -> None:
    """Generate what is missing, batch by batch, so that an unfinished run holds whole comparisons."""
    tuning = set(sets) <= set(TUNING)
    path, trials = path_of(folder, model, tuning), trials_of(model, steps)
    pairs = pairs_of(count, first + PROMISED_PAIRS if tuning else first)
    bench, finished = bench_of(model, steps, trials, pairs[0]), done(path)
    wanted = list({one.name: one for name in sets for one in SETS[name](bench)}.values())
    costs = {key[:3]: cost for key, cost in finished.items()}
    parts = list(batches(pairs, TOGETHER[model]))
    note_run(folder, sets, count, trials, bench)
    for part, candidate in track([(part, one) for part in parts for one in wanted], description=f"{model}, {steps}"):
        keys = [key_of(steps, candidate, prompt.text, seed) for prompt, seed in part]
        if all(key in finished for key in keys):
            continue
        if keys[0][:3] not in costs:
            costs[keys[0][:3]] = counted(trials, candidate, pairs)
        generated = rows_of(model, steps, part, candidate, costs[keys[0][:3]], trials)
        new = [row for row, key in zip(generated, keys, strict=True) if key not in finished]
        rows.append(path, *map(asdict, new))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[name for name in embedded.available() if name != "emoji-judge"])
    parser.add_argument("sets", nargs="+", choices=list(SETS))
    parser.add_argument("--pairs", type=int, default=24, help="prompts and seeds")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first pair, to share work between processes"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    arguments = parser.parse_args(given)
    if 0 < len(set(arguments.sets) & set(TUNING)) < len(set(arguments.sets)):
        parser.error(f"{', '.join(TUNING)} are generated from other prompts and seeds; ask for them alone.")
    torch.set_num_threads(arguments.threads)
    run(arguments.model, arguments.sets, arguments.pairs, arguments.steps, arguments.results, arguments.first)


if __name__ == "__main__":
    main()
