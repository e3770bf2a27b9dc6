"""``tomadiff paper``: the paper's tables and figures on the model at hand, and whether its claims reproduce."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tomadiff.cli import options
from tomadiff.cli.errors import exit_if_failed
from tomadiff.cli.tables import print_table
from tomadiff.errors import SettingError
from tomadiff.utils.writing import require_folder, write_whole

if TYPE_CHECKING:
    from tomadiff.evaluation.paper.outcomes import Outcome
    from tomadiff.evaluation.paper.work import Work


Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of everything; the same command goes on in it.")]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="A folder saved by diffusers, or a hub id; default: embedded.")
]
Arch = Annotated[
    str | None, typer.Option(help="sdxl, flux, sd3, pixart or sd15 in full size with random weights: times alone.")
]
Tables = Annotated[str | None, typer.Option(help="Numbers with commas between: 2,6. Default: all that fit.")]
Prompts = Annotated[int, typer.Option(min=1, help="How many prompts.")]
Seeds = Annotated[int, typer.Option(min=1, help="Images of each prompt and method.")]
PromptsFrom = Annotated[str, typer.Option(help="A .txt, .csv, .tsv or .json file, or the embedded list.")]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="How often things are timed that need no image; default: 30, archs 10.")
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Denoising steps of all tables; default: the model's own, in table 7 50.")
]
Stored = Annotated[
    bool, typer.Option("--stored", help="Generate and time nothing: tables of what the folder holds, measured again.")
]


def paper(
    out: Out = Path("paper"),
    model: Model = None,
    arch: Arch = None,
    tables: Tables = None,
    prompts: Prompts = 8,
    seeds: Seeds = 2,
    prompts_from: PromptsFrom = "emoji",
    steps: Steps = None,
    size: options.Size = None,
    batch: options.BatchSize = 1,
    rounds: Rounds = None,
    depth: options.Depth = None,
    networks: options.Networks = None,
    reference: options.Reference = None,
    stored: Stored = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Make the paper's tables and figures with the model at hand, and say which of its claims reproduce.

    \b
    tomadiff paper
    tomadiff paper --tables 2,6 --prompts 16 --seeds 3
    tomadiff paper --tables 4,5 --rounds 50
    tomadiff paper --model owner/name --prompts-from GEMRec.csv --prompts 50 --seeds 3 --steps 50 --size 1024
    tomadiff paper --arch sdxl --tables 1 --size 512 --depth 2
    tomadiff paper --stored --networks lpips,dino,clip

    Images are kept as runs in the folder: more prompts, seeds and tables may join them, and a kill does no harm.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    from tomadiff.evaluation.paper.work import Scale, Work
    from tomadiff.evaluation.runs.processes import ProcessGroup

    _check(model, arch, prompts_from, prompts, allow_pickle, stored, reference)
    scale = Scale(prompts_from, prompts, seeds, steps, options.read_size(size), batch, rounds, depth)
    require_folder(out)
    looks, how = options.read_networks(networks), (device, dtype, allow_pickle)
    work = Work(out, scale, how, looks, ProcessGroup(device), reference, stored, shown=not as_json)
    _do(work, model, arch, tables)
    _tell(work, as_json, wide)


def _check(
    model: str | None,
    arch: str | None,
    source: str,
    prompts: int,
    allow_pickle: bool,
    stored: bool,
    reference: Path | None,
) -> None:
    """Raise for what cannot work before anything is loaded."""
    from tomadiff.evaluation.runs.models import require_model
    from tomadiff.evaluation.runs.prompts import load_prompts

    if model is not None and arch is not None:
        raise SettingError("Give --model to generate with or --arch to time, not both.")
    options.require_images(reference)
    if arch is not None and stored:
        raise SettingError("--arch times, and --stored does not: leave one of them out.")
    load_prompts(source, prompts)
    if model is not None and not stored:
        require_model(model, allow_pickle)


def _do(work: Work, model: str | None, arch: str | None, tables: str | None) -> None:
    """Times first: they need nobody else on the machine."""
    from tomadiff.evaluation.paper.experiments import MERGE_SPEED, experiments_of, tables_named

    wanted = tables_named(tables)
    for table in MERGE_SPEED if work.group.leads else ():
        if table in wanted:
            with work.failures.of(f"Table {table}"):
                work.merge_speed(table)
    asked = None if tables is None else experiments_of(wanted)
    if asked == []:
        return
    if arch is not None:
        if work.group.leads:
            work.time(arch, asked)
    elif model is not None:
        work.generate(model, asked)
    else:
        work.generate_embedded(wanted)


def _tell(work: Work, as_json: bool, wide: bool) -> None:
    """Write everything down, and print it; the first of several processes does."""
    from tomadiff.cli.report import write
    from tomadiff.evaluation.paper.page import page
    from tomadiff.evaluation.paper.text import markdown
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.images import save_image

    if not work.group.leads:
        exit_if_failed(work.failures)
        return
    work.folder.mkdir(parents=True, exist_ok=True)
    work.outcomes.sort(key=lambda outcome: outcome.table)
    work.figures = dict(sorted(work.figures.items(), key=lambda named: int(re.findall(r"\d+", named[0])[0])))
    for loaded in work.runs:
        write([loaded], loaded.run.folder / "report.html", f"The paper's experiments on {loaded.name}")
    for name, figure in work.figures.items():
        save_image(figure.image, work.folder / name, optimize=True)
    machine = work.runs[0].run.environment if work.runs else environment()
    held = json.dumps({"machine": machine, "tables": [one.as_json() for one in work.outcomes]}, indent=2)
    write_whole(work.folder / "paper.html", page(work.outcomes, list(work.figures.values()), work.curves, machine))
    write_whole(work.folder / "paper.md", markdown(work.outcomes, machine, work.figures))
    write_whole(work.folder / "paper.json", held)
    if as_json:
        typer.echo(held)
    else:
        _show(work.outcomes, work.folder, wide)
    exit_if_failed(work.failures)


def _show(outcomes: list[Outcome], folder: Path, wide: bool) -> None:
    """Tables without intervals, and a line for each claim."""
    from tomadiff.evaluation.paper.text import MARKS, claim_of, heading_of, summary

    console = Console(soft_wrap=True, highlight=False)
    for outcome in outcomes:
        rows = [[value for value, _ in row] for row in outcome.rows]
        if rows:
            print_table(console, outcome.headings, rows, heading_of(outcome), wide=wide)
        else:
            console.print(f"{heading_of(outcome)}: {outcome.notes[-1]}", markup=False)
        for one in outcome.judged:
            console.print(f"{MARKS[one.verdict]} {one.verdict.value}: {claim_of(one)}", markup=False)
        console.print()
    console.print(summary(outcomes), markup=False)
    console.print(f"Images, curves and what each claim rests on are in [bold]{folder / 'paper.html'}[/bold]")
