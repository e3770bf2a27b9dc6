"""``tomadiff demo``: see what merging does, in a minute and with nothing downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console

from tomadiff.cli.errors import warn
from tomadiff.cli.tables import print_table
from tomadiff.embedded import MissingWeightsError
from tomadiff.errors import SettingError
from tomadiff.evaluation.runs.images import save_image
from tomadiff.utils.writing import require_folder

if TYPE_CHECKING:
    from PIL import Image

    from tomadiff.evaluation.report.figures import MergeSample
    from tomadiff.evaluation.report.report import LoadedRun
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.variants import Variant

RATIOS = (0.25, 0.5, 0.75)
PROMPTS = (
    "a fox on a blue background",
    "a panda on a pink background",
    "a strawberry on a white background",
    "an owl on a blue background",
)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that everything is written to.")] = Path("demo"),
    model: Annotated[
        str, typer.Option("--model", "-m", help="emoji-sdxl or emoji-flux: which embedded pipeline generates.")
    ] = "emoji-sdxl",
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="What to generate; default: four emoji.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which images.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps; default: the model's own.")] = None,
) -> None:
    """Generate a few images in full, as we recommend, in half of the time, and with tokens merged.

    \b
    tomadiff demo
    tomadiff demo --model emoji-flux --out flux-demo
    tomadiff demo --prompt "a panda on a red background" --seed 3

    Writes a grid of the images, a map of what merged, and a page with sliders.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.prompts import unknown_objects

    require_folder(out)
    warn(unknown_objects(model, prompt or ()))
    torch.set_num_threads(1)  # small products: threads gain little, and lose much on a busy machine
    console = Console(soft_wrap=True)
    try:
        with console.status(f"Loading {model} …"):
            pipe = models.load(model, "cpu")
    except MissingWeightsError:
        console.print(f"The weights of {model} are not in this installation, so a synthetic image stands in.")
        _synthetic(out, console)
        return
    _pipeline(pipe, model, out, tuple(prompt or PROMPTS), seed, steps, console)


# ---------------------------------------------------------------------------------------------- with a pipeline
class Way(NamedTuple):
    """One column: a variant, the line of Python that does it, and what it is."""

    variant: Variant
    python: str
    about: str


def _ways(pipe: Any, call: dict[str, Any], prompt: str, console: Console) -> list[Way]:
    """What we recommend first, then a budget, then merging alone."""
    from tomadiff.cost.budget import Budget
    from tomadiff.evaluation.runs.prompts import Prompt
    from tomadiff.evaluation.runs.variants import RECOMMENDED, Variant, within

    ways = [
        Way(Variant(), "in full", "Every step is computed with every token."),
        Way(Variant.named(RECOMMENDED), "apply(pipe)", "What we recommend: steps that can be foreseen are forecast."),
    ]
    try:
        budget = within(pipe, RECOMMENDED, Budget(speedup=2.0), Prompt(prompt), call)
    except SettingError as problem:  # with few steps there is not enough to leave out
        console.print(f"speedup=2 is left out. {problem}", markup=False)
    else:
        ways.append(Way(budget, "speedup=2", "Half of the time: more is left out, and the image moves further away."))
    for ratio in RATIOS:
        about = f"ToMA alone: {ratio:.0%} of the tokens merge before each layer, at every step."
        ways.append(Way(Variant.named("toma", ratio), f"ratio={ratio:g}", about))
    return ways


def _pipeline(
    pipe: Any, model: str, out: Path, prompts: Sequence[str], seed: int, steps: int | None, console: Console
) -> None:
    from tomadiff.cli.report import write
    from tomadiff.evaluation.report.report import Figure, load_runs
    from tomadiff.evaluation.runs.generate import call_of

    call = call_of(model, pipe, steps=steps)
    ways = _ways(pipe, call, prompts[0], console)
    run = _generated(pipe, model, call, out / "run", prompts, seed, ways)
    loaded = load_runs([run.folder])[0]
    with console.status("Making the grid and the map …"):
        grid, merged = _grid(run, prompts, seed, ways), _map(pipe, run, call, prompts[0], seed)
        save_image(grid, out / "grid.png", optimize=True)
        save_image(merged, out / "merge_map.png", optimize=True)
        note = f"“{prompts[0]}”, the plan of the last step in the first block that merges."
        notes = " ".join(_sentences(run, loaded, ways))
        figures = [Figure("The images", grid, notes), Figure("What merged", merged, note)]
        write([loaded], out / "index.html", "The same image, sooner", figures=figures)
    _show(console, run, loaded, ways)
    for name, what in (("index.html", "page"), ("grid.png", "grid"), ("merge_map.png", "map of what merged")):
        console.print(f"The {what} is in [bold]{out / name}[/bold]")


def _generated(
    pipe: Any, model: str, call: dict[str, Any], folder: Path, prompts: Sequence[str], seed: int, ways: Sequence[Way]
) -> Run:
    """Generate all images anew (times of another day would mislead) and measure their pixels."""
    from tomadiff.evaluation.metrics.measure import measure
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.dry_run import meter
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.tasks import bar, run_tasks, tasks

    if (folder / "run.json").is_file():
        shutil.rmtree(folder)
    about = models.describe(model, pipe)
    run = Run.begin(folder, {**about, "call": call}, environment(about["device"], about["dtype"]))
    batches = tasks(prompts, [seed], [way.variant for way in ways])
    with bar(len(batches)) as advance:
        run_tasks(pipe, run, batches, call, about, advance, meter(pipe, batches[0][0].prompt, seed, call))
    measure(run, networks={})
    return run


def _grid(run: Run, prompts: Sequence[str], seed: int, ways: Sequence[Way]) -> Image.Image:
    from tomadiff.evaluation.report.overlay import image_grid
    from tomadiff.evaluation.runs.record import sample_key

    samples = run.samples()
    rows = []
    for prompt in dict.fromkeys(prompts):
        own = [samples[sample_key(*way.variant.group, prompt, seed)] for way in ways]
        notes = ["", *(f"{one.metrics['psnr']:.1f} dB, {one.flops / own[0].flops:.0%} of FLOPs" for one in own[1:])]
        rows.append((prompt, [run.image(one.key) for one in own], notes))
    return image_grid(rows, [way.python for way in ways])


def _map(pipe: Any, run: Run, call: dict[str, Any], prompt: str, seed: int) -> Image.Image:
    """Generate one prompt again at every ratio, this time keeping the plans."""
    from tomadiff.evaluation.report.overlay import MergedImage, merge_overlay
    from tomadiff.evaluation.runs.generate import generate_image
    from tomadiff.evaluation.runs.record import sample_key
    from tomadiff.evaluation.runs.variants import Variant

    generated = []
    for ratio in RATIOS:
        with Variant.named("toma", ratio).on(pipe) as patch:
            image = generate_image(pipe, prompt, seed, call)
            assert patch is not None
            plan = next(iter(patch.plans().values()))
        generated.append(MergedImage(image, plan, f"{ratio:.0%} merged"))
    return merge_overlay(run.image(sample_key("baseline", 0.0, prompt, seed)), generated)


def _show(console: Console, run: Run, loaded: LoadedRun, ways: Sequence[Way]) -> None:
    full = loaded.results.rows[0]
    rows = []
    for way in ways:
        row, fast = loaded.results.row(*way.variant.group), loaded.speed_ups.get(way.variant.group)
        psnr = row.metrics.get("psnr")
        gain, near = f"{fast.value:.2f}×" if fast else "–", f"{psnr.value:.1f} dB" if psnr else "–"
        rows.append([way.python, f"{row.seconds:.2f}", gain, f"{row.flops / full.flops:.0%}", near])
    headings = ("way", "seconds", "speed-up", "FLOPs", "PSNR")
    print_table(console, headings, rows, f"{run.config['model']} against the full image, one thread of a CPU")
    for line in _sentences(run, loaded, ways):
        console.print(line, markup=False, highlight=False)


def _sentences(run: Run, loaded: LoadedRun, ways: Sequence[Way]) -> list[str]:
    """One for each way, and why some of them are slower."""
    told = [f"{way.python}: {way.about}" for way in ways]
    told.append("Seconds are of the median image; PSNR is the mean distance from the full images, larger is nearer.")
    slow = [way.python for way in ways[1:] if (fast := loaded.speed_ups.get(way.variant.group)) and fast.value < 1]
    if slow:
        call = run.config["call"]
        size = f"{call['width']}²" if "width" in call else "This size"
        told.append(
            f"Slower than the full model: {', '.join(slow)}. {size} is a small image: making plans takes longer than "
            "merging saves. The guard would leave those tokens unmerged, and is off here to show them. "
            "On SDXL at 1024² a step is 1.28 to 2.67 times as fast (docs/results/speed.md, the paper's settings)."
        )
    return told


# ---------------------------------------------------------------------------------------------- without one
def _synthetic(out: Path, console: Console) -> None:
    """Merge the tokens of a synthetic image at three ratios and show where they went."""
    from tomadiff.evaluation.report.figures import merge_map, merge_sample
    from tomadiff.evaluation.runs.synthetic_image import synthetic_image
    from tomadiff.methods.toma import ToMA

    image = synthetic_image()
    samples = [merge_sample(image, ToMA(ratio)) for ratio in RATIOS]
    path = out / "merge_map.png"
    out.mkdir(parents=True, exist_ok=True)
    save_image(merge_map(image, samples), path, optimize=True)
    _show_synthetic(console, samples)
    console.print(f"The merge map is in [bold]{path}[/bold]")


def _show_synthetic(console: Console, samples: list[MergeSample]) -> None:
    """What each ratio did to the tokens and to the image."""
    rows = []
    for sample in samples:
        coverage = f"{sample.plan.coverage.mean().item():.4f}"
        sizes = (str(sample.grid.tokens), str(sample.kept))
        times = (f"{sample.psnr:.1f} dB", f"{sample.milliseconds:.1f} ms")
        rows.append([f"{sample.plan.realised_ratio:.0%}", *sizes, coverage, *times])
    headings = ("merged", "tokens before", "after", "coverage", "image", "plan, 1 thread")
    print_table(console, headings, rows, f"ToMA on an image of {samples[0].grid} tokens")
