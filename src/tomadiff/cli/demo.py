"""``tomadiff demo``: see what merging does, in a minute and with nothing downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from tomadiff.cli.tables import print_table
from tomadiff.embedded import MissingWeightsError
from tomadiff.evaluation.runs.images import save_image
from tomadiff.utils.writing import require_folder

if TYPE_CHECKING:
    from PIL import Image

    from tomadiff.evaluation.report.figures import MergeSample
    from tomadiff.evaluation.report.report import LoadedRun
    from tomadiff.evaluation.runs.record import Run

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
    """Generate a few images unmerged and with a quarter, half and three quarters of their tokens merged.

    \b
    tomadiff demo
    tomadiff demo --model emoji-flux --out flux-demo
    tomadiff demo --prompt "a panda on a red background" --seed 3

    Writes a grid of the images, a map of what merged, and a page with sliders.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.runs import models

    require_folder(out)
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
def _pipeline(
    pipe: Any, model: str, out: Path, prompts: Sequence[str], seed: int, steps: int | None, console: Console
) -> None:
    from tomadiff.cli.report import write
    from tomadiff.evaluation.report.report import Figure, load_runs
    from tomadiff.evaluation.runs.generate import call_of

    call = call_of(model, pipe, steps=steps)
    run = _generated(pipe, model, call, out / "run", prompts, seed)
    loaded = load_runs([run.folder])[0]
    with console.status("Making the grid and the map …"):
        grid, merged = _grid(run, prompts, seed), _map(pipe, run, call, prompts[0], seed)
        save_image(grid, out / "grid.png", optimize=True)
        save_image(merged, out / "merge_map.png", optimize=True)
        note = f"“{prompts[0]}”, the plan of the last step in the first block that merges."
        write(
            [loaded],
            out / "index.html",
            "Token merging, before and after",
            figures=[Figure("What merged", merged, note)],
        )
    _show(console, loaded)
    for name, what in (("index.html", "page"), ("grid.png", "grid"), ("merge_map.png", "map of what merged")):
        console.print(f"The {what} is in [bold]{out / name}[/bold]")


def _generated(pipe: Any, model: str, call: dict[str, Any], folder: Path, prompts: Sequence[str], seed: int) -> Run:
    """Generate all images anew (times of another day would mislead) and measure their pixels."""
    from tomadiff.evaluation.metrics.measure import measure
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.dry_run import meter
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.tasks import bar, run_tasks, tasks
    from tomadiff.evaluation.runs.variants import variants

    if (folder / "run.json").is_file():
        shutil.rmtree(folder)
    about = models.describe(model, pipe)
    run = Run.begin(folder, {**about, "call": call}, environment(about["device"], about["dtype"]))
    batches = tasks(prompts, [seed], variants(["toma"], RATIOS))
    with bar(len(batches)) as advance:
        run_tasks(pipe, run, batches, call, about, advance, meter(pipe, batches[0][0].prompt, seed, call))
    measure(run, networks={})
    return run


def _grid(run: Run, prompts: Sequence[str], seed: int) -> Image.Image:
    from tomadiff.evaluation.report.overlay import image_grid
    from tomadiff.evaluation.runs.record import sample_key

    samples = run.samples()
    variants = [("baseline", 0.0), *(("toma", ratio) for ratio in RATIOS)]
    rows = []
    for prompt in dict.fromkeys(prompts):
        own = [samples[sample_key(method, ratio, prompt, seed)] for method, ratio in variants]
        notes = [f"{one.seconds:.2f} s" + (f", {one.metrics['psnr']:.1f} dB" if one.ratio else "") for one in own]
        rows.append((prompt, [run.image(one.key) for one in own], notes))
    return image_grid(rows, ["unmerged", *(f"{ratio:.0%} merged" for ratio in RATIOS)])


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


def _show(console: Console, loaded: LoadedRun) -> None:
    rows = []
    for row in loaded.results.rows:
        fast = loaded.speed_ups.get((row.method, row.ratio))
        psnr, ssim = row.metrics.get("psnr"), row.metrics.get("ssim")
        rows.append(
            [
                f"{row.ratio:.0%}",
                f"{row.seconds:.2f}",
                f"{fast.value:.2f}×" if fast else "–",
                f"{psnr.value:.1f} dB" if psnr else "–",
                f"{ssim.value:.3f}" if ssim else "–",
            ]
        )
    headings = ("merged", "seconds", "speed-up", "PSNR", "SSIM")
    print_table(console, headings, rows, "ToMA against the unmerged model, one thread")


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
