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
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.caches import calling
from benchmarks.candidates import SETS, TUNING, Bench, adapts, digest
from benchmarks.machine import environment
from tomadiff import embedded
from tomadiff.evaluation.metrics.networks import Clip
from tomadiff.evaluation.runs import rows
from tomadiff.evaluation.runs.dry_run import dry_run
from tomadiff.evaluation.runs.models import denoiser
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
    model: str, steps: int, pairs: Sequence[Pair], candidate: Variant, cost: Callable[[float], float], trials: Trials
) -> list[Row]:
    """Generate ``pairs`` with ``candidate`` and measure; ``cost`` follows from the share of steps computed."""
    metrics, found = ("mse", "psnr", "ssim", "judge"), []
    for (prompt, seed), one in zip(pairs, trials.compare(pairs, candidate), strict=True):
        figures = {name: float(f"{one[name]:.5g}") for name in metrics}
        share = round(cost(one["computed"]), 4)
        found.append(Row(model, steps, candidate.name, digest(candidate), prompt.text, seed, share, **figures))
    return found


def pairs_of(count: int, first: int = 0) -> list[Pair]:
    """Prompts of the embedded list in turn, a new seed each time round, from the ``first`` on."""
    prompts = emoji_prompts()
    return [(prompts[place % len(prompts)], place // len(prompts)) for place in range(first, first + count)]


def pairs_parser(about: str | None, pairs: int, shows_table: bool = False) -> argparse.ArgumentParser:
    """What commands that generate pairs have in common."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=pairs, help="prompts and seeds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    if shows_table:
        parser.add_argument("--table", action="store_true", help="print what is there, and generate nothing")
    return parser


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


class Memory:
    """Calls of the denoiser that were computed for the images at work: with forecasts, images share first steps.

    A call alike gives the same bytes, so nothing changes but the time.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._outputs, self._of = pipe, dict[tuple[bytes, ...], Tensor](), ""

    def of(self, pairs: Sequence[Pair], candidate: Variant) -> AbstractContextManager[None]:
        """While it lasts, calls are remembered, if the candidate changes nothing inside the denoiser."""
        if candidate.method is not None or candidate.around is not nullcontext:
            return nullcontext()
        if self._of != repr(pairs):
            self._of, self._outputs = repr(pairs), {}
        model = denoiser(self._pipe)
        return calling(model, partial(self._call, model.forward))

    def _call(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor]:
        given = tuple(one.numpy().tobytes() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
        if given not in self._outputs:
            self._outputs[given] = plain(*args, **kwargs)[0]
        return (self._outputs[given].clone(),)


def bench_of(model: str, steps: int, trials: Trials, pair: Pair) -> Bench:
    """Costs by a dry run, which takes no image; only sets that ask for them pay for it."""
    dry = cache(lambda: dry_run(trials.pipe, *pair, trials.call))
    denoising = cache(lambda: dry().flops(Variant()) / trials.flops(pair))
    return Bench(model, steps, lambda candidate: dry().flops(candidate) / dry().flops(Variant()), denoising)


def counted(
    trials: Trials, candidate: Variant, pairs: Sequence[Pair], bench: Bench | None = None
) -> Callable[[float], float]:
    """The share of FLOPs by the share of steps computed; of one image if all cost the same.

    Text encoders and decoder run once however many steps are forecast, and every computed step costs the same.
    """
    if candidate.forecast is None or bench is None:
        share = fmean(trials.cost(pair, candidate) for pair in pairs[: COUNTED if adapts(candidate) else 1])
        return lambda _: share
    every, denoising = bench.cost(replace(candidate, forecast=None)), bench.denoising()
    return lambda computed: 1 - denoising + denoising * every * computed


def note_run(folder: Path, sets: Sequence[str], pairs: int, trials: Trials, bench: Bench) -> None:
    """Write down what is generated with."""
    size, dtype = trials.call["height"], str(trials.pipe.dtype).removeprefix("torch.")
    generated = {"model": bench.model, "steps": bench.steps, "sets": " ".join(sets), "pairs": pairs}
    rows.append(folder / RUNS, {**generated, "size": size, "dtype": dtype, **environment()})


def run(
    model: str,
    sets: Sequence[str],
    count: int,
    steps: int,
    folder: Path = RESULTS,
    first: int = 0,
    tuning: bool = False,
    together: int | None = None,
    only: str = "",
) -> None:
    """Generate what is missing, batch by batch, so that an unfinished run holds whole comparisons."""
    tuning = tuning or set(sets) <= set(TUNING)
    path, trials = path_of(folder, model, tuning), trials_of(model, steps)
    pairs = pairs_of(count, first + PROMISED_PAIRS if tuning else first)
    bench, finished = bench_of(model, steps, trials, pairs[0]), done(path)
    every = {one.name: one for name in sets for one in SETS[name](bench)}
    wanted = [one for one in every.values() if re.fullmatch(only or ".*", one.name)]
    costs: dict[tuple[str, ...], Callable[[float], float]] = {}
    parts = list(batches(pairs, together or TOGETHER[embedded.base(model)]))
    note_run(folder, sets, count, trials, bench)
    memory = Memory(trials.pipe)
    for part, candidate in track([(part, one) for part in parts for one in wanted], description=f"{model}, {steps}"):
        keys = [key_of(steps, candidate, prompt.text, seed) for prompt, seed in part]
        if all(key in finished for key in keys):
            continue
        key = keys[0][:3]
        if key not in costs:
            known = next((cost for done, cost in finished.items() if done[:3] == key), None)
            again = candidate.forecast is None and known is not None
            costs[key] = (lambda _, known=known: known) if again else counted(trials, candidate, pairs, bench)
        with memory.of(part, candidate):
            generated = rows_of(model, steps, part, candidate, costs[key], trials)
        new = [row for row, key in zip(generated, keys, strict=True) if key not in finished]
        rows.append(path, *map(asdict, new))


def main(given: Sequence[str] | None = None) -> None:
    parser = pairs_parser(__doc__, 24)
    parser.add_argument("model", choices=embedded.pipelines())
    parser.add_argument("sets", nargs="+", choices=list(SETS))
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first pair, to share work between processes"
    )
    parser.add_argument("--tuning", action="store_true", help="other prompts and seeds, which settings are chosen by")
    parser.add_argument("--together", type=int, help="images of a batch")
    parser.add_argument("--only", default="", help="a regular expression: settings of the sets with such a name")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args(given)
    if not arguments.tuning and 0 < len(set(arguments.sets) & set(TUNING)) < len(set(arguments.sets)):
        parser.error(f"{', '.join(TUNING)} are generated from other prompts and seeds; ask for them alone.")
    torch.set_num_threads(arguments.threads)
    where = {name: getattr(arguments, name) for name in ("first", "tuning", "only")} | {"folder": arguments.results}
    run(arguments.model, arguments.sets, arguments.pairs, arguments.steps, together=arguments.together, **where)


if __name__ == "__main__":
    main()
