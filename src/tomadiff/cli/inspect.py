"""``tomadiff inspect``: shows what merging does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.cli.errors import warn
from tomadiff.cli.tables import print_table
from tomadiff.errors import SettingError
from tomadiff.utils.settings import Ratio as Share
from tomadiff.utils.settings import check
from tomadiff.utils.writing import require_folder, write_whole

if TYPE_CHECKING:
    from tomadiff.evaluation.inspect.inspection import Inspection

MODEL, PROMPT, METHOD = "emoji-sdxl", "a fox on a blue background", "toma"


Model = Annotated[
    str | None, typer.Option("--model", "-m", help="An embedded pipeline, a folder or a hub id; default: emoji-sdxl.")
]
PromptText = Annotated[str | None, typer.Option("--prompt", "-p", help=f"What to generate; default: {PROMPT}.")]
Methods = Annotated[
    list[str] | None, typer.Option(help="toma (the default), toma-stripe, tomesd, … ; a wrong name lists all.")
]
Ratio = Annotated[
    float | None, typer.Option(help="Share of tokens removed: 0.5 keeps half of them, and is the default.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Which image, or which landscape.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder that everything is written to.")]
SyntheticImage = Annotated[
    bool, typer.Option("--landscape", help="No model: show how methods move the tokens of a painted landscape.")
]


def inspect(
    model: Model = None,
    prompt: PromptText = None,
    method: Methods = None,
    ratio: Ratio = None,
    seed: Seed = None,
    steps: options.Steps = None,
    size: options.Size = None,
    guidance: options.Guidance = None,
    out: Out = Path("inspect"),
    landscape: SyntheticImage = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
    as_json: options.Json = False,
) -> None:
    """Show what merging does in a model: who merges with whom, what is lost, what lasts, and what it costs.

    \b
    tomadiff inspect
    tomadiff inspect --prompt "a panda on a pink background" --ratio 0.75 --out panda
    tomadiff inspect --model owner/name --prompt "a lighthouse" --method tomesd --steps 30
    tomadiff inspect --landscape --method toma --method toma-stripe

    Writes figures of destinations and clusters, hidden states, coverage and overlap over steps, and a page with all.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.inspect.method_figures import METHODS_SHOWN
    from tomadiff.evaluation.runs.prompts import unknown_objects
    from tomadiff.methods import registry

    names = method or (METHODS_SHOWN if landscape else [METHOD])
    for name in names:
        registry.asked(name, ratio if method else None)  # told before anything is loaded or generated
    ratio = check("ratio", 0.5 if ratio is None else ratio, Share)
    require_folder(out)
    if landscape:
        _require_no_model(model, prompt, steps, size, guidance)
        _landscape(names, ratio, seed, out, as_json)
        return
    asked = {"steps": steps, "size": options.read_size(size), "guidance": guidance}
    task = _task(model, prompt, seed, names, ratio)
    warn(unknown_objects(task["model"], [task["prompt"]]))
    _model(task, asked, (device, dtype, allow_pickle), out, as_json)


# ---------------------------------------------------------------------------------------------- a model
def _task(
    model: str | None, prompt: str | None, seed: int | None, methods: Sequence[str], ratio: float
) -> dict[str, Any]:
    """What is asked for, with whatever was left open filled in."""
    text = PROMPT if prompt is None else prompt.strip()
    if not text:
        raise SettingError("The prompt is empty; say what to generate.")
    if len(methods) > 1:
        raise SettingError("A model is inspected with one method at a time; --landscape compares several.")
    if ratio == 0:
        raise SettingError("There is nothing to inspect: ratio=0 merges no token. Give a share such as 0.5.")
    return {"model": model or MODEL, "prompt": text, "seed": seed or 0, "method": methods[0], "ratio": ratio}


def _model(
    task: dict[str, Any],
    asked: dict[str, Any],
    how: tuple[str | None, str | None, bool],
    out: Path,
    as_json: bool,
) -> None:
    from tomadiff.evaluation.inspect.inspection import inspect
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.generate import call_of

    model, told = task["model"], Console(stderr=True)
    if model in models.EMBEDDED:
        torch.set_num_threads(1)  # small products: threads gain little, and lose much on a busy machine
    with told.status(f"Loading {model} …"):
        pipe = models.load(model, *how)
    call, known = call_of(model, pipe, **asked), models.describe(model, pipe)
    out.mkdir(parents=True, exist_ok=True)
    with told.status("Generating the image without merging and with it …"):
        found = inspect(pipe, call=call, **{name: value for name, value in task.items() if name != "model"})
    about = {**known, **task, "ratio": found.ratio, "call": call}
    written = _write(found, about, environment(known["device"], known["dtype"]), out)
    _tell(found, about, written, as_json)


def _write(found: Inspection, about: dict[str, Any], machine: dict[str, Any], out: Path) -> list[Path]:
    """The page, then its figures."""
    from tomadiff.evaluation.inspect.figures import figures
    from tomadiff.evaluation.inspect.page import page
    from tomadiff.evaluation.runs.images import save_image

    made = figures(found)
    paths = [out / "index.html", *(out / f"{name}.png" for name in made)]
    for path, figure in zip(paths[1:], made.values(), strict=True):
        save_image(figure.image, path, optimize=True)
    write_whole(paths[0], page(found, made, about, machine))
    return paths


def _tell(found: Inspection, about: dict[str, Any], written: Sequence[Path], as_json: bool) -> None:
    if as_json:
        files = {"page": str(written[0]), "figures": [str(path) for path in written[1:]]}
        typer.echo(json.dumps({**files, **about, **found.as_json()}, indent=2, ensure_ascii=False))
        return
    console = Console()
    _show_seen(console, found)
    _show_cost(console, found)
    names = ", ".join(path.name for path in written[1:])
    console.print(f"The page is [bold]{written[0]}[/bold], its figures lie next to it: {names}", soft_wrap=True)


def _show_seen(console: Console, found: Inspection) -> None:
    rows = []
    for level in found.levels:
        plan, looks, shared = level.watched.plan, level.watched.looks, level.overlap
        later = [f"{shared.by_distance[apart]:.0%}" if apart < len(looks) else "–" for apart in (1, 10)]
        covered = f"{looks[0].coverage:.3f} → {looks[-1].coverage:.3f}"
        rows.append([level.name, f"{plan.tokens} → {plan.kept}", covered, *later, f"{shared.chance:.0%}"])
    headings = ("plan", "tokens", "coverage", "1 step later", "10 steps later", "chance")
    print_table(console, headings, rows, found.title)
    console.print("Steps later: destinations that would be chosen again.")


def _show_cost(console: Console, found: Inspection) -> None:
    rows = []
    for level in found.levels:
        times = (f"{1000 * own.least:.3g} ms" for own in level.times.values())
        rows.append([level.name, f"{level.watched.plan.nbytes / 1024:.0f} KiB", *times])
    title = f"What plans cost, best of {found.levels[0].runs} runs on this machine"
    print_table(console, ("plan", "memory", *found.levels[0].times), rows, title)


# ---------------------------------------------------------------------------------------------- a landscape
def _require_no_model(*given: object) -> None:
    if any(setting is not None for setting in given):
        raise SettingError("A landscape is painted, not generated: leave out --model, --prompt, --steps and the like.")


def _landscape(names: Sequence[str], ratio: float, seed: int | None, out: Path, as_json: bool) -> None:
    from tomadiff.evaluation.inspect.method_figures import method_figure
    from tomadiff.evaluation.runs.images import save_image
    from tomadiff.evaluation.runs.synthetic_image import synthetic_image

    image = synthetic_image() if seed is None else synthetic_image(seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    paths = {name: out / f"{name}.png" for name in names}
    for name, path in paths.items():
        save_image(method_figure(name, image, ratio).quantize(colors=128), path, optimize=True)
    if as_json:
        typer.echo(json.dumps({"figures": {name: str(path) for name, path in paths.items()}}, indent=2))
        return
    console = Console(soft_wrap=True)
    for name, path in paths.items():
        console.print(f"{name} is in [bold]{path}[/bold]")
