"""How near images with forecast steps are to full ones: python -m benchmarks.forecasts emoji-sdxl default trial.

Generates the tuning pairs on an embedded pipeline, all rules of a set for one pair after the other, and appends one
line per image to `results/forecasts-<model>.csv`. What is in the file is not generated again. The cost is the share of
denoiser calls that were computed. `--cache` keeps outputs of the denoiser in a folder: rules share their first steps.
`--table` prints what the file holds, over the pairs that all rules (of the sets) have. Rows of `Earlier` are those of
our rule in plain time, before the log-odds of the noise level were its measure. `--shown` takes the first of the pairs
that results are shown on, for patterns that nothing was tuned for, and a file of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from benchmarks.fidelity import PROMISED_PAIRS, pairs_of, pairs_parser, trials_of
from benchmarks.forecast_rules import Tried
from tomadiff import embedded
from tomadiff.engine.samplers import step_sizes
from tomadiff.evaluation.metrics.distances import mse, psnr
from tomadiff.evaluation.metrics.features import to_pixels
from tomadiff.evaluation.runs import rows
from tomadiff.evaluation.runs.models import denoiser
from tomadiff.evaluation.tune.trials import Pair, Trials
from tomadiff.steps.forecast import Forecast, Forecaster

Rule = Forecast | Tried
SETS: dict[str, list[Rule]] = {
    "default": [Forecast(tolerance) for tolerance in (0.1, 0.05, 0.2)],
    "large": [Forecast(0.3)],
    "uncorrected": [Forecast(tolerance, correct=False) for tolerance in (0.1, 0.05, 0.2, 0.3)],
    "trial": [Tried(tolerance) for tolerance in (0.05, 0.1, 0.2)],
    "trial, short memory": [Tried(tolerance, recursive=False) for tolerance in (0.1, 0.2, 0.05)],
    "every": [Forecast(every=2), Forecast(every=3)],
    "4 steps": [Forecast(steps=steps) for steps in ((0, 2), (0, 3))],
    "8 steps": [Forecast(steps=steps) for steps in ((0, 1, 3, 5, 7), (0, 1, 4, 7), (0, 2, 4, 6), (0, 1, 4))],
    "20 steps": [Forecast(steps=(*range(4), *range(4, 20, every))) for every in (2, 3)],
    "knobs": [
        Tried(0.1, by_sample=True),
        Tried(0.05, "line"),
        Tried(0.1, "last"),
        Tried(0.1, "blend"),
        Tried(0.1, growth="absolute"),
        Tried(0.1, weight="step"),
        Tried(0.1, weight="noise"),
        Tried(0.1, fall=0.0),
        Tried(0.15, "blend", "distance", by_sample=True, first=4),
        Tried(0.15, "blend", "distance", by_sample=True, first=4, fall=0.0),
    ],
}


class Bench:
    """Generates with a rule around the denoiser of a pipeline."""

    def __init__(self, model: str, steps: int, cache: Path | None) -> None:
        self.trials: Trials = trials_of(model, steps)
        self.trials.pipe.set_progress_bar_config(disable=True)
        self.model, self.cache = denoiser(self.trials.pipe), cache
        self.full: dict[str, Image.Image] = {}

    def compare(self, pair: Pair, rule: Rule) -> dict[str, Any]:
        """Generate one image with the rule; how near it is to the full one, and which steps were computed."""
        if repr(pair) not in self.full:
            self.full[repr(pair)] = self._generate(pair, None)[0]
        image, computed = self._generate(pair, rule)
        pixels, wanted = to_pixels([image]), to_pixels([self.full[repr(pair)]])
        cost = len(computed) / len(self._times())
        figures = {"mse": float(mse(pixels, wanted)[0]), "psnr": float(psnr(pixels, wanted)[0])}
        return {"cost": round(cost, 4), **figures, "computed": " ".join(map(str, computed))}

    def _times(self) -> list[float]:
        return [float(time) / 1000 for time in self.trials.pipe.scheduler.timesteps]

    def _generate(self, pair: Pair, rule: Rule | None) -> tuple[Image.Image, Sequence[int]]:
        state: Any = None
        step = -1

        def call(compute: Callable[[], Tensor]) -> Tensor:
            nonlocal state, step
            step += 1
            if step == 0 and rule is not None:
                state = _begin(rule, self._times(), step_sizes(self.trials.pipe.scheduler))
            if state is None:
                return compute()
            if isinstance(state, Forecaster):
                return state.call(step, 0, None, compute)  # type: ignore[no-any-return]
            return state.call(step, compute)  # type: ignore[no-any-return]

        with self._around(call, repr(pair)):
            image = self.trials.generate([pair])[0]
        computed = state.pattern.computed if isinstance(state, Forecaster) else getattr(state, "computed", ())
        return image, computed

    @contextmanager
    def _around(self, call: Callable[[Callable[[], Tensor]], Tensor], name: str) -> Iterator[None]:
        inner = self.model.forward

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor]:
            return (call(lambda: self._compute(inner, name, args, kwargs)),)

        self.model.forward = forward
        try:
            yield
        finally:
            del self.model.forward

    def _compute(self, inner: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Tensor:
        if self.cache is None:
            return inner(*args, **kwargs)[0]  # type: ignore[no-any-return]
        given = [args[0] if args else kwargs["hidden_states"], args[1] if len(args) > 1 else kwargs["timestep"]]
        key = hashlib.sha1(repr((type(self.model).__name__, name)).encode())
        for tensor in given:
            key.update(tensor.contiguous().numpy().tobytes())
        path = self.cache / f"{key.hexdigest()}.pt"
        if not path.exists():
            torch.save(inner(*args, **kwargs)[0].clone(), path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        return torch.load(path, weights_only=True)  # type: ignore[no-any-return]


def _begin(rule: Rule, times: list[float], sizes: Sequence[float] | None) -> Any:
    if isinstance(rule, Tried):
        return rule.begin(times)
    forecaster = Forecaster(rule)
    forecaster.begin(len(times), times, sizes)
    return forecaster


def path_of(folder: Path, model: str, shown: bool) -> Path:
    return folder / f"forecasts-{'shown-' if shown else ''}{model}.csv"


def run(path: Path, model: str, sets: Sequence[str], pairs: Sequence[Pair], steps: int, cache: Path | None) -> None:
    """Generate what is missing, pair by pair."""
    done = {(row["steps"], row["rule"], row["prompt"], row["seed"]) for row in rows.read(path)}
    bench = Bench(model, steps, cache)
    wanted = [(pair, rule) for pair in pairs for name in sets for rule in SETS[name]]
    for pair, rule in track(wanted, description=f"{model}, {steps}"):
        prompt, seed = pair
        if (str(steps), repr(rule), prompt.text, str(seed)) not in done:
            about = {"model": model, "steps": steps, "rule": repr(rule), "prompt": prompt.text, "seed": seed}
            rows.append(path, {**about, **bench.compare(pair, rule)})


def table(path: Path, sets: Sequence[str] = ()) -> Iterator[str]:
    """One line of Markdown for each rule (of the sets), over the pairs that all of them have with so many steps."""
    by_rule: dict[tuple[str, str], dict[tuple[str, str], rows.Row]] = {}
    wanted = {repr(rule) for name in sets for rule in SETS[name]}
    for row in rows.read(path):
        if wanted and row["rule"] not in wanted:
            continue
        by_rule.setdefault((row["steps"], row["rule"]), {})[row["prompt"], row["seed"]] = row
    yield "| steps | rule | pairs | cost | PSNR | MSE, mean | median | worst |"
    yield "|---|---|---|---|---|---|---|---|"
    for (steps, rule), own in by_rule.items():
        common = set.intersection(*(set(found) for (count, _), found in by_rule.items() if count == steps))
        cost, psnr, mse = ([float(own[pair][name]) for pair in common] for name in ("cost", "psnr", "mse"))
        if common:
            errors = f"{fmean(mse):.2f} | {median(mse):.2f} | {max(mse):.1f}"
            yield f"| {steps} | `{rule}` | {len(common)} | {fmean(cost):.3f} | {fmean(psnr):.2f} | {errors} |"


def main(given: Sequence[str] | None = None) -> None:
    parser = pairs_parser(__doc__, 24, shows_table=True)
    parser.add_argument("model", choices=embedded.pipelines())
    parser.add_argument("sets", nargs="*", help=", ".join(SETS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cache", type=Path, help="folder for outputs of the denoiser")
    parser.add_argument("--shown", action="store_true", help="the first of the pairs that results are shown on")
    arguments = parser.parse_args(given)
    path = path_of(arguments.results, arguments.model, arguments.shown)
    if arguments.table:
        print("\n".join(table(path, arguments.sets)))
        return
    torch.set_num_threads(arguments.threads)
    if arguments.cache is not None:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    pairs = pairs_of(arguments.pairs, 0 if arguments.shown else PROMISED_PAIRS)
    run(path, arguments.model, arguments.sets, pairs, arguments.steps, arguments.cache)


if __name__ == "__main__":
    main()
