"""``tomadiff generate``: generate images with any diffusers pipeline, merged or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.cli.errors import warn
from tomadiff.cli.tables import print_table
from tomadiff.errors import SettingError
from tomadiff.utils.writing import require_folder

if TYPE_CHECKING:
    from tomadiff.cost.budget import Budget
    from tomadiff.evaluation.runs.prompts import Prompt
    from tomadiff.evaluation.runs.record import Run, Sample
    from tomadiff.evaluation.runs.tasks import Batch
    from tomadiff.evaluation.runs.variants import Variant


class Loaded(NamedTuple):
    """A pipeline, what it is called with, and what a run says about it."""

    pipe: Any
    call: dict[str, Any]
    about: dict[str, str]


Prompts = Annotated[list[str], typer.Option("--prompt", "-p", help="What to generate; may be given several times.")]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="full, recommended, toma, tomesd, … ; a wrong name lists all. "
        "Default: toma; with --flops or --speedup what is recommended for it."
    ),
]
Ratio = Annotated[
    float | None, typer.Option(help="Share of tokens removed: 0.5 keeps half of them, and is the default.")
]
Compare = Annotated[bool, typer.Option("--compare", help="Generate the full image as well.")]
Negative = Annotated[str, typer.Option(help="What to keep out of the image.")]
Seed = Annotated[int, typer.Option(min=0, help="Which image; the first one with --seeds.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many images of each prompt.")]


def generate(
    model: options.Model,
    prompt: Prompts,
    out: options.Out = Path("images"),
    method: MethodName = None,
    ratio: Ratio = None,
    flops: options.Flops = None,
    speedup: options.Speedup = None,
    forecast: options.Forecast = None,
    compare: Compare = False,
    negative: Negative = "",
    seed: Seed = 0,
    seeds: Seeds = 1,
    steps: options.Steps = None,
    size: options.Size = None,
    guidance: options.Guidance = None,
    batch: options.BatchSize = 1,
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
    as_json: options.Json = False,
) -> None:
    """Generate images with any diffusers pipeline, and write into each how to generate it again.

    \b
    tomadiff generate -m emoji-sdxl -p "a fox on a blue background"
    tomadiff generate -m emoji-sdxl -p "a fox on a blue background" --ratio 0.75 --compare
    tomadiff generate -m emoji-sdxl -p "a fox on a blue background" --method recommended --compare
    tomadiff generate -m emoji-sdxl -p "a fox on a blue background" --flops 0.7
    tomadiff generate -m owner/name -p "a lighthouse" --size 1024 --steps 30 --out lighthouse

    Images that are in the folder already are not generated again; more prompts, seeds and methods may join them.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.runs.tasks import tasks
    from tomadiff.evaluation.runs.variants import RECOMMENDED, variants

    budget, tolerance = options.read_budget(flops, speedup, ratio), options.read_forecast(forecast)
    method = method or ("toma" if budget is None or tolerance else RECOMMENDED)
    wanted = variants([method], [_ratio(method, ratio)], [tolerance])
    prompts = _prompts(model, prompt, negative)
    require_folder(out)
    loaded = _load(model, (device, dtype, allow_pickle), steps, options.read_size(size), guidance)
    wanted = _within(budget, method, wanted, loaded, prompts[0], min(batch, seeds * len(prompts)))
    batches = tasks(prompts, range(seed, seed + seeds), wanted if compare else wanted[-1:], batch)
    _tell(_generated(loaded, out, batches, shown=not as_json), batches, as_json)


def _ratio(method: str, ratio: float | None) -> float:
    options.require_ratio([method], ratio)
    return 0.5 if ratio is None else ratio


def _prompts(model: str, texts: list[str], negative: str) -> list[Prompt]:
    from tomadiff.evaluation.runs.prompts import Prompt, unknown_objects

    warn(unknown_objects(model, texts))

    prompts = [Prompt(text.strip(), negative) for text in texts]
    if not all(prompt.text for prompt in prompts):
        raise SettingError("A prompt is empty; say what to generate.")
    return prompts


def _load(
    model: str, how: tuple[Any, Any, bool], steps: int | None, size: tuple[int, int] | None, guidance: float | None
) -> Loaded:
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.generate import call_of

    pipe = models.load(model, *how)
    return Loaded(pipe, call_of(model, pipe, steps=steps, size=size, guidance=guidance), models.describe(model, pipe))


def _within(
    budget: Budget | None, method: str, wanted: list[Variant], loaded: Loaded, prompt: Prompt, batch: int
) -> list[Variant]:
    """In full and with the method, with the ratio that the budget chooses if there is one."""
    from tomadiff.evaluation.runs.variants import within

    if budget is None:
        return wanted
    chosen = within(loaded.pipe, method, budget, prompt, loaded.call, batch)
    return [wanted[0], chosen.forecasting(wanted[-1].tolerance)]


def _generated(loaded: Loaded, out: Path, batches: Sequence[Batch], shown: bool) -> Run:
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.tasks import bar, run_tasks
    from tomadiff.evaluation.runs.variants import require_supported

    pipe, call, about = loaded
    wanted = [task for batch in batches for task in batch]
    require_supported(pipe, list(dict.fromkeys(task.variant for task in wanted)))
    # Only what an image's name does not say: other prompts, seeds and methods may join the folder.
    run = Run.begin(out, {**about, "call": call}, environment(about["device"], about["dtype"]))
    done = run.samples()
    with bar(len(wanted), sum(task.key in done for task in wanted), shown) as advance:
        run_tasks(pipe, run, batches, call, about, advance)
    return run


def _tell(run: Run, batches: Sequence[Batch], as_json: bool) -> None:
    samples = [run.samples()[task.key] for batch in batches for task in batch]
    if as_json:
        images = [_as_row(run, sample) for sample in samples]
        typer.echo(json.dumps({"folder": str(run.folder), "images": images}, indent=2))
        return
    from tomadiff.evaluation.report.report import title_of

    rows = []
    for sample in samples:
        name = run.image_path(sample.key).name
        rows.append([name, title_of(sample.method), f"{sample.ratio:g}", str(sample.seed), f"{sample.seconds:.2f}"])
    console = Console(soft_wrap=True)
    print_table(console, ("image", "method", "ratio", "seed", "seconds"), rows)
    console.print(f"The images are in [bold]{run.images}[/bold]")


def _as_row(run: Run, sample: Sample) -> dict[str, Any]:
    from dataclasses import asdict

    return {"path": str(run.image_path(sample.key)), **asdict(sample)}
