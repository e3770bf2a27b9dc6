"""``tomadiff demo``: see what merging does, in a minute and with nothing downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

    from tomadiff.evaluation.metrics.table import Row
    from tomadiff.evaluation.report.figures import MergeSample
    from tomadiff.evaluation.report.report import LoadedRun
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.variants import Variant

RATIOS = (0.25, 0.5, 0.75)
SPEEDUP = 2.5  # apply(pipe) nearly halves the time of 20 steps: less than this would show the same again
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
    """Generate a few images in full, as we recommend, 2.5 times as fast, and with tokens merged.

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
def _ways(pipe: Any, call: dict[str, Any], prompt: str, console: Console) -> list[Variant]:
    """In full, what we recommend, a budget, then merging alone."""
    from tomadiff.cost.budget import Budget
    from tomadiff.evaluation.runs.prompts import Prompt
    from tomadiff.evaluation.runs.variants import RECOMMENDED, Variant, within

    ways = [Variant(), Variant.named(RECOMMENDED)]
    try:
        ways.append(within(pipe, RECOMMENDED, Budget(speedup=SPEEDUP), Prompt(prompt), call))
    except SettingError as problem:  # with few steps there is not enough to leave out
        console.print(f"speedup={SPEEDUP:g} is left out. {problem}", markup=False)
    return [*ways, *(Variant.named("toma", ratio) for ratio in RATIOS)]


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
        words = [*_sentences(loaded), *_remarks(run, loaded)]
        figures = [Figure("Side by side", grid, "\n".join(words)), Figure("What merged", merged, note)]
        write([loaded], out / "index.html", "The same image, sooner", figures=figures, remarks=_remarks(run, loaded))
    _show(console, run, loaded)
    for name, what in (("index.html", "page"), ("grid.png", "grid"), ("merge_map.png", "map of what merged")):
        console.print(f"The {what} is in [bold]{out / name}[/bold]")
    console.print("Your own prompts: tomadiff web. Your own pipeline: tomadiff.apply(pipe).", highlight=False)


def _generated(
    pipe: Any,
    model: str,
    call: dict[str, Any],
    folder: Path,
    prompts: Sequence[str],
    seed: int,
    ways: Sequence[Variant],
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
    batches = tasks(prompts, [seed], ways)
    with bar(len(batches)) as advance:
        run_tasks(pipe, run, batches, call, about, advance, meter(pipe, batches[0][0].prompt, seed, call))
    measure(run, networks={})
    return run


def _grid(run: Run, prompts: Sequence[str], seed: int, ways: Sequence[Variant]) -> Image.Image:
    from tomadiff.evaluation.report.overlay import image_grid
    from tomadiff.evaluation.report.report import label_of
    from tomadiff.evaluation.runs.record import sample_key

    samples = run.samples()
    rows = []
    for prompt in dict.fromkeys(prompts):
        own = [samples[sample_key(*way.group, prompt, seed)] for way in ways]
        notes = ["", *(f"{one.metrics['psnr']:.1f} dB, {one.flops / own[0].flops:.0%} of FLOPs" for one in own[1:])]
        rows.append((prompt, [run.image(one.key) for one in own], notes))
    return image_grid(rows, [label_of(*way.group) for way in ways])


def _map(pipe: Any, run: Run, call: dict[str, Any], prompt: str, seed: int) -> Image.Image:
    """Generate one prompt again at every ratio, this time keeping the plans."""
    from tomadiff.evaluation.report.overlay import MergedImage, merge_overlay
    from tomadiff.evaluation.runs.generate import generate_image
    from tomadiff.evaluation.runs.record import sample_key
    from tomadiff.evaluation.runs.variants import FULL, Variant

    generated = []
    for ratio in RATIOS:
        with Variant.named("toma", ratio).on(pipe) as patch:
            image = generate_image(pipe, prompt, seed, call)
            assert patch is not None
            plan = next(iter(patch.plans().values()))
        generated.append(MergedImage(image, plan, f"{ratio:.0%} merged"))
    return merge_overlay(run.image(sample_key(FULL, 0.0, prompt, seed)), generated)


def _show(console: Console, run: Run, loaded: LoadedRun) -> None:
    from tomadiff.evaluation.report.report import label_of

    full, rows = loaded.results.rows[0], []
    for row in loaded.results.rows:
        fast, psnr = loaded.speed_ups.get((row.method, row.ratio)), row.metrics.get("psnr")
        gain, near = f"{fast.value:.2f}×" if fast else "–", f"{psnr.value:.1f} dB" if psnr else "–"
        cells = [f"{row.seconds:.2f}", gain, f"{row.flops / full.flops:.0%}", near]
        rows.append([label_of(row.method, row.ratio), *cells])
    headings = ("way", "seconds", "speed-up", "FLOPs", "PSNR")
    print_table(console, headings, rows, f"{_what(run, full.count)}, one thread of a CPU")
    for line in (*_sentences(loaded), *_remarks(run, loaded)):
        console.print(line, markup=False, highlight=False, soft_wrap=False)


def _what(run: Run, prompts: int) -> str:
    """What was generated, in a few words."""
    call, images = run.config["call"], "1 prompt" if prompts == 1 else f"{prompts} prompts"
    size = f", {call['width']}²" if "width" in call else ""
    return f"{run.config['model']}: {images}, {call['num_inference_steps']} steps{size}"


ABOUT = {
    "full": "every step is computed, with every token.",
    "recommended": "what we recommend: steps that can be foreseen are forecast, not computed.",
    "recommended-speedup=2.5": "apply(pipe, speedup=2.5), expected to take two fifths of the time: more steps are "
    "forecast, and tokens merge where that does not suffice.",
    "toma": "apply(pipe, 0.25) and so on: this share of the tokens merges before each layer, at every step.",
}
METRICS = (
    "seconds: of the median image. speed-up: against the full image of the same prompt, the mean. FLOPs: what is left. "
    "PSNR: how near to the full image, the mean; larger is nearer, and above 40 dB a difference is hard to see."
)
IDLE = "nothing is left out with so few steps, so its time is that of the full image."


def _sentences(loaded: LoadedRun) -> list[str]:
    """What each way does, and what the numbers are."""
    from tomadiff.evaluation.report.report import title_of

    names = dict.fromkeys(row.method for row in loaded.results.rows)
    return [*(f"{title_of(name)}: {ABOUT[name]}" for name in names), METRICS]


def _remarks(run: Run, loaded: LoadedRun) -> list[str]:
    """Why some ways gain nothing."""
    from tomadiff.evaluation.report.report import label_of, title_of

    full, *others = loaded.results.rows
    idle = [row for row in others if not row.ratio and row.flops >= full.flops]
    slow = [row for row in others if row not in idle and _speed_up(loaded, row) < 1]
    told = [f"{title_of(row.method)}: {IDLE}" for row in idle]
    return [*told, _why_slow(run, [label_of(row.method, row.ratio) for row in slow])] if slow else told


def _speed_up(loaded: LoadedRun, row: Row) -> float:
    fast = loaded.speed_ups.get((row.method, row.ratio))
    return 1.0 if fast is None else fast.value


def _why_slow(run: Run, names: Sequence[str]) -> str:
    size = f"{run.config['call']['width']}²" if "width" in run.config["call"] else "This size"
    return (
        f"Slower than in full: {'; '.join(names)}. {size} is a small image: choosing what merges takes longer than "
        "merging saves. Outside of this demo, the guard of apply() leaves such tokens unmerged. On the full-size SDXL "
        "at 1024², a step with 25, 50 and 75% merged is 1.28, 1.75 and 2.67 times as fast on a CPU, with the paper's "
        "settings (docs/results/speed.md)."
    )


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
