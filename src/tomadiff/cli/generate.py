"""``tomadiff generate``: generate images with any diffusers pipeline, merged or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tomadiff.cli import options
from tomadiff.errors import SettingError
from tomadiff.utils.writing import require_folder

if TYPE_CHECKING:
    from tomadiff.evaluation.runs.record import Run, Sample


def generate(
    model: options.Model,
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to generate; may be given several times.")],
    out: options.Out = Path("images"),
    method: Annotated[str, typer.Option(help="baseline, toma, toma-stripe, tomesd, … ; a wrong name lists all.")] = (
        "toma"
    ),
    ratio: Annotated[
        float | None, typer.Option(help="Share of tokens removed: 0.5 keeps half of them, and is the default.")
    ] = None,
    flops: options.Flops = None,
    speedup: options.Speedup = None,
    forecast: options.Forecast = None,
    compare: Annotated[bool, typer.Option("--compare", help="Generate the unmerged image as well.")] = False,
    negative: Annotated[str, typer.Option(help="What to keep out of the image.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Which image; the first one with --seeds.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many images of each prompt.")] = 1,
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
    tomadiff generate -m emoji-sdxl -p "a fox on a blue background" --flops 0.7
    tomadiff generate -m emoji-sdxl -p "a fox on a blue background" --method baseline --forecast 0.1
    tomadiff generate -m ./my-pipeline -p "a lighthouse" --method tomesd --seeds 4 --batch 4
    tomadiff generate -m owner/name -p "a lighthouse" --size 1024 --steps 30 --out lighthouse

    Images that are in the folder already are not generated again; more prompts, seeds and methods may join them.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.runs.prompts import Prompt
    from tomadiff.evaluation.runs.tasks import tasks
    from tomadiff.evaluation.runs.variants import Variant, variants, within

    budget, tolerance = options.read_budget(flops, speedup, ratio), options.read_forecast(forecast)
    wanted = variants([method], [0.5 if ratio is None else ratio], [tolerance])
    prompts = [Prompt(text.strip(), negative) for text in prompt]
    if not all(asked.text for asked in prompts):
        raise SettingError("A prompt is empty; say what to generate.")
    require_folder(out)
    pipe, call, about = _prepared(
        model, (device, dtype, allow_pickle), steps=steps, size=options.read_size(size), guidance=guidance
    )
    if budget is not None:
        chosen = within(pipe, method, budget, prompts[0], call, min(batch, seeds * len(prompts)))
        wanted = [Variant(), chosen.forecasting(tolerance)]
    chosen_variants = wanted if compare or len(wanted) == 1 else wanted[1:]
    batches = tasks(prompts, range(seed, seed + seeds), chosen_variants, batch)
    run = _generated(pipe, out, call, about, batches, chosen_variants, shown=not as_json)
    keys = [task.key for part in batches for task in part]
    _tell(run, [run.samples()[key] for key in keys], as_json)


def _prepared(model: str, how: tuple[Any, Any, bool], **asked: Any) -> tuple[Any, dict[str, Any], dict[str, str]]:
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.generate import call_of

    device, dtype, allow_pickle = how
    pipe = models.load(model, device, dtype, allow_pickle)
    return pipe, call_of(model, pipe, **asked), models.describe(model, pipe)


def _generated(
    pipe: Any, out: Path, call: dict[str, Any], about: dict[str, str], batches: Any, wanted: Any, shown: bool
) -> Run:
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.tasks import bar, run_tasks
    from tomadiff.evaluation.runs.variants import require_supported

    require_supported(pipe, wanted)
    # Only what an image's name does not say: other prompts, seeds and methods may join the folder.
    run = Run.begin(out, {**about, "call": call}, environment(about["device"], about["dtype"]))
    done = run.samples()
    keys = [task.key for part in batches for task in part]
    with bar(len(keys), sum(key in done for key in keys), shown) as advance:
        run_tasks(pipe, run, batches, call, about, advance)
    return run


def _tell(run: Run, samples: list[Sample], as_json: bool) -> None:
    if as_json:
        images = [_as_row(run, sample) for sample in samples]
        typer.echo(json.dumps({"folder": str(run.folder), "images": images}, indent=2))
        return
    table = Table(title_justify="left")
    for heading in ("image", "method", "ratio", "seed", "seconds"):
        table.add_column(heading, justify="left" if heading in ("image", "method") else "right")
    for sample in samples:
        name = run.image_path(sample.key).name
        table.add_row(name, sample.method, f"{sample.ratio:g}", str(sample.seed), f"{sample.seconds:.2f}")
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"The images are in [bold]{run.images}[/bold]")


def _as_row(run: Run, sample: Sample) -> dict[str, Any]:
    from dataclasses import asdict

    return {"path": str(run.image_path(sample.key)), **asdict(sample)}
