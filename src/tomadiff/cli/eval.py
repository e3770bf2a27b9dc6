"""``tomadiff eval``: prompts × seeds × methods → images → metrics with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tomadiff.cli import options
from tomadiff.cli.errors import exit_if_failed, warn
from tomadiff.cli.tables import show
from tomadiff.utils.writing import require_folder, require_output

if TYPE_CHECKING:
    from tomadiff.evaluation.metrics.table import Results
    from tomadiff.evaluation.runs.failures import Failures
    from tomadiff.evaluation.runs.processes import ProcessGroup
    from tomadiff.evaluation.runs.prompts import Prompt
    from tomadiff.evaluation.runs.protocol import Protocol
    from tomadiff.evaluation.runs.record import Run
    from tomadiff.evaluation.runs.variants import Variant


Ratios = Annotated[str | None, typer.Option(help="Shares of tokens removed; default: 0.25,0.5,0.75.")]
Forecasts = Annotated[
    str | None, typer.Option("--forecast", help="Tolerances of forecast steps with each method: 0,0.05; default: 0.")
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Images of each prompt and method; default: 3.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first prompts of the file.")]
ProtocolName = Annotated[
    str, typer.Option(help="plain; paper: 1024², 50 steps, 50 prompts × 3; paper-fid: 1000 prompts × 3.")
]


def evaluate(
    model: options.Model,
    out: options.Out = Path("run"),
    prompts: options.PromptFile = None,
    methods: options.Methods = None,
    ratios: Ratios = None,
    forecasts: Forecasts = None,
    seeds: Seeds = None,
    limit: Limit = None,
    steps: options.Steps = None,
    size: options.Size = None,
    guidance: options.Guidance = None,
    batch: options.BatchSize = 1,
    networks: options.Networks = None,
    reference: options.Reference = None,
    protocol: ProtocolName = "plain",
    device: options.Device = None,
    dtype: options.Dtype = None,
    allow_pickle: options.AllowPickle = False,
    wide: options.Wide = False,
    table: options.Csv = None,
    as_json: options.Json = False,
) -> None:
    """Generate images with and without merging, and measure how far the images are apart and how long they took.

    \b
    tomadiff eval -m emoji-sdxl
    tomadiff eval -m emoji-sdxl --methods toma,tomesd --ratios 0.25,0.5 --seeds 2 --limit 8 --out first
    tomadiff eval -m emoji-sdxl --methods full,toma --ratios 0.5 --forecast 0,0.05,0.1
    tomadiff eval -m owner/name --prompts PartiPrompts.tsv --networks clip,dino,lpips
    tomadiff eval -m owner/name --protocol paper --prompts GEMRec.csv --out paper
    accelerate launch --multi_gpu --num_processes 2 -m tomadiff eval -m emoji-sdxl

    A run may be killed at any moment: the same command goes on where it was.
    """  # noqa: D301 - a real backspace keeps the lines of the examples apart
    chosen = _protocol(protocol, prompts, methods, ratios, seeds=seeds, limit=limit, size=options.read_size(size))
    looks = options.read_networks(networks)
    options.require_images(reference)
    wanted = Wanted(model, prompts, chosen, steps, guidance, batch, options.read_forecasts(forecasts or "0"))
    require_folder(out)
    wanted.check(allow_pickle)
    if table is not None:
        require_output(table, "--csv", make_folder=True)
    _run(wanted, out, (device, dtype, allow_pickle), reference, looks, Output(as_json, wide, table))


def _protocol(name: str, source: str | None, methods: str | None, ratios: str | None, **changes: Any) -> Protocol:
    """The protocol of that name, but for what was given beside it."""
    from tomadiff.evaluation.runs.protocol import protocol

    chosen = protocol(name, source).changed(
        methods=None if methods is None else tuple(options.read_names(methods)),
        ratios=None if ratios is None else tuple(options.read_ratios(ratios)),
        **changes,
    )
    for ratio in chosen.ratios if ratios is not None else ():
        options.require_ratio(chosen.methods, ratio)
    return chosen


def _run(
    wanted: Wanted,
    out: Path,
    how: tuple[str | None, str | None, bool],
    reference: Path | None,
    networks: dict[str, Any] | None,
    told: Output,
) -> None:
    """Generate in all processes, and measure in the first."""
    from tomadiff.evaluation.runs.processes import ProcessGroup

    group = ProcessGroup(how[0])
    run, failures = _generate(group, wanted, out, how, shown=not told.as_json)
    if group.leads:
        _measure(run, reference, networks, told)
    exit_if_failed(failures)


class Output(NamedTuple):
    """How results are told."""

    as_json: bool
    wide: bool
    csv: Path | None


@dataclass(frozen=True)
class Wanted:
    """What an evaluation generates, as far as it is known before the model is loaded."""

    model: str
    source: str | None
    chosen: Protocol
    steps: int | None
    guidance: float | None
    batch: int
    forecasts: tuple[float, ...] = (0.0,)

    def variants(self) -> list[Variant]:
        """All that is compared."""
        from tomadiff.evaluation.runs.variants import variants

        return variants(self.chosen.methods, self.chosen.ratios, self.forecasts)

    def check(self, allow_pickle: bool) -> None:
        """Raise for what cannot work before anything is loaded or launched."""
        from tomadiff.evaluation.runs.models import require_model
        from tomadiff.evaluation.runs.prompts import unknown_objects
        from tomadiff.evaluation.runs.tasks import tasks

        prompts = self.prompts()
        tasks(prompts, range(self.chosen.seeds), self.variants())
        warn(unknown_objects(self.model, [one.text for one in prompts]))
        require_model(self.model, allow_pickle)

    def prompts(self) -> list[Prompt]:
        """From the file, or the first of the embedded list."""
        from tomadiff.evaluation.runs.prompts import load_prompts
        from tomadiff.evaluation.runs.protocol import EMBEDDED_LIMIT

        if self.source is None:
            return load_prompts("emoji", self.chosen.limit or EMBEDDED_LIMIT)
        return load_prompts(self.source, self.chosen.limit)

    def config(self, prompts: list[Prompt], call: dict[str, Any], about: dict[str, str]) -> dict[str, Any]:
        """What must be equal for a run to go on in a folder; the number of processes may change."""
        asked = [[prompt.text, prompt.negative] for prompt in prompts]
        chosen = {"methods": list(self.chosen.methods), "ratios": list(self.chosen.ratios), "seeds": self.chosen.seeds}
        chosen |= {"forecasts": list(self.forecasts)} if any(self.forecasts) else {}
        return {**about, **chosen, "call": call, "batch": self.batch, "prompts": asked}


def _generate(
    group: ProcessGroup, wanted: Wanted, out: Path, how: tuple[Any, Any, bool], shown: bool
) -> tuple[Run, Failures]:
    from tomadiff.evaluation.runs import models
    from tomadiff.evaluation.runs.environment import environment
    from tomadiff.evaluation.runs.generate import call_of
    from tomadiff.evaluation.runs.tasks import tasks
    from tomadiff.evaluation.runs.variants import require_supported

    chosen, prompts = wanted.chosen, wanted.prompts()
    variants = wanted.variants()
    batches = tasks(prompts, range(chosen.seeds), variants, wanted.batch)
    device, dtype, allow_pickle = how
    pipe = models.load(wanted.model, device or group.device, dtype, allow_pickle)
    steps = chosen.steps_for(type(pipe).__name__) if wanted.steps is None else wanted.steps
    call = call_of(wanted.model, pipe, steps=steps, size=chosen.size, guidance=wanted.guidance)
    require_supported(pipe, variants)
    about = models.describe(wanted.model, pipe)
    machine = environment(about["device"], about["dtype"], group.size)
    run = group.begin(out, wanted.config(prompts, call, about), machine)
    return run, group.run_tasks(pipe, run, batches, call, about, shown)


def _measure(run: Run, reference: Path | None, networks: dict[str, Any] | None, told: Output) -> None:
    from rich.console import Console

    from tomadiff.cli.report import write
    from tomadiff.evaluation.metrics.measure import measure
    from tomadiff.evaluation.report.report import load_runs
    from tomadiff.evaluation.runs.rows import write as write_rows

    with Console(stderr=True, quiet=told.as_json).status("measuring") as status:
        results = measure(
            run, networks=networks, reference_images=reference, say=lambda what: status.update(f"measuring {what}")
        )
    page = run.folder / "report.html"
    write(load_runs([run.folder]), page, f"{run.config['model']}, merged and unmerged")
    if told.csv is not None:
        write_rows(told.csv, _flat(results))
    if told.as_json:
        typer.echo(results.as_json())
    else:
        show(results, run.folder, page, told.wide)


def _flat(results: Results) -> list[dict[str, Any]]:
    """A line for each method and ratio, with every metric and the ends of its interval."""
    rows = []
    for row in results.rows:
        flat = {name: getattr(row, name) for name in ("method", "ratio", "count", "seconds", "flops")}
        for name in results.columns:
            interval = row.metrics.get(name)
            for end in ("value", "low", "high"):
                flat[name if end == "value" else f"{name}_{end}"] = "" if interval is None else getattr(interval, end)
        rows.append(flat)
    return rows
