"""Doing the paper's experiments: generate, time, and put together what came out. See ``outcomes.py`` for the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tomadiff.embedded import MissingWeightsError
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.paper.experiments import MERGE_SPEED, TABLES, Experiment, experiments_of
from tomadiff.evaluation.paper.outcomes import (
    Outcome,
    Rows,
    grid_of,
    measured_outcome,
    merging_outcome,
    only,
    paper_metrics,
    timed_outcome,
    untested,
)
from tomadiff.evaluation.report.markup import Markup
from tomadiff.evaluation.report.report import Figure, LoadedRun, load_runs
from tomadiff.evaluation.report.trade_off import trade_off
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.environment import environment
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.generate import call_of
from tomadiff.evaluation.runs.journal import Journal, kept
from tomadiff.evaluation.runs.processes import ProcessGroup
from tomadiff.evaluation.runs.prompts import load_prompts
from tomadiff.evaluation.runs.record import Run
from tomadiff.evaluation.runs.tasks import bar, tasks
from tomadiff.evaluation.runs.variants import Variant, supported_variants
from tomadiff.evaluation.timing import merge_speed
from tomadiff.evaluation.timing.latency import ROW as TIMED_ROW
from tomadiff.evaluation.timing.latency import measure as time_all
from tomadiff.evaluation.timing.workloads import Workload, architecture_steps, dtype_of

KINDS = {"emoji-sdxl": "unet", "emoji-flux": "transformer"}
"""The embedded pipelines, and the kind of model each stands for."""

UNETS = ("sdxl", "sd15")  # of the architectures
ARCH_ROUNDS = 10
ARCH_NOTES = (
    "Weights are random: times and counts are those of the real model, images would be noise.",
    "Timed is the mean step of a window of ten.",
)


@dataclass(frozen=True)
class Scale:
    """How much to do; ``None`` leaves it to the model.

    Attributes:
        source: of prompts, see :func:`tomadiff.evaluation.runs.prompts.load_prompts`.
        prompts: how many of them.
        seeds: images of each prompt and variant.
        steps: of denoising.
        size: width and height in pixels.
        batch: images that are generated together.
        rounds: how often things are timed that need no image.
        depth: blocks per stack of an architecture.
    """

    source: str = "emoji"
    prompts: int = 8
    seeds: int = 2
    steps: int | None = None
    size: tuple[int, int] | None = None
    batch: int = 1
    rounds: int | None = None
    depth: int | None = None


@dataclass
class Work:
    """The experiments under way.

    Attributes:
        folder: where everything goes.
        scale: how much to do.
        how: device, dtype, and whether pickled weights may be opened.
        networks: that look at images; ``None`` means all that can be had.
        group: the processes that share the work.
        shown: whether there are bars to look at.
        outcomes: the tables so far.
        runs: the runs so far.
        figures: the images so far, by the name of their file.
        curves: charts by their title.
        failures: rows and tables that failed, while the others went on.
    """

    folder: Path
    scale: Scale
    how: tuple[str | None, str | None, bool]
    networks: dict[str, Any] | None
    group: ProcessGroup
    shown: bool = True
    outcomes: list[Outcome] = field(default_factory=list)
    runs: list[LoadedRun] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    curves: dict[str, Markup | None] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)

    # ------------------------------------------------------------------------------------------ images
    def generate_embedded(self, tables: Sequence[int]) -> None:
        """Every table with the embedded pipeline of its kind; one without weights, or that fails, is reported."""
        for name, kind in KINDS.items():
            experiments = experiments_of(tables, kind)
            if not experiments:
                continue
            try:
                self.generate(name, experiments)
                continue
            except MissingWeightsError as problem:
                reason = str(problem)
            except Exception as problem:
                reason = self.failures.note(name, problem)
            self.outcomes += [untested(one, name, reason) for one in experiments]

    def generate(self, model: str, experiments: Sequence[Experiment] | None = None) -> None:
        """Generate and measure what experiments ask for; all that fit the model by default."""
        device, dtype, allow_pickle = self.how
        pipe = models.load(model, device or self.group.device, dtype, allow_pickle)
        experiments = experiments_of(TABLES, kind_of(pipe)) if experiments is None else experiments
        wanted, refused = supported_variants(pipe, variants_of(experiments))
        run, failures = self._generated(model, pipe, wanted)
        self.failures.lines += failures.lines
        if self.group.leads:
            measure(run, networks=self.networks)
            self._add(
                load_runs([run.folder])[0], experiments, [*(f"Left out {line}" for line in refused), *failures.lines]
            )

    def _generated(self, model: str, pipe: Any, wanted: Sequence[Variant]) -> tuple[Run, Failures]:
        scale, about = self.scale, models.describe(model, pipe)
        call = call_of(model, pipe, steps=scale.steps, size=scale.size)
        batches = tasks(load_prompts(scale.source, scale.prompts), range(scale.seeds), wanted, scale.batch)
        # Only what an image's name does not say: other prompts, seeds and tables may join the folder.
        config = {**about, "call": call, "batch": scale.batch}
        machine = environment(about["device"], about["dtype"], self.group.size)
        run = self.group.begin(self.folder / folder_of(model), config, machine)
        return run, self.group.run_tasks(pipe, run, batches, call, about, self.shown)

    def _add(self, loaded: LoadedRun, experiments: Sequence[Experiment], notes: Sequence[str]) -> None:
        """Tables, figures and curves out of a measured run."""
        self.runs.append(loaded)
        for place, experiment in enumerate(experiments):
            once = () if place else (*notes, *loaded.notes)  # they are about all tables of the run
            self.outcomes.append(measured_outcome(experiment, loaded, once))
            for grid in experiment.figures:
                image = grid_of(grid, loaded)
                if image is not None:
                    title = f"Figure {grid.number}: {grid.title} ({loaded.name})"
                    self.figures[f"figure-{grid.number}.png"] = Figure(title, image, "One prompt in each row.")
            if experiment.curves:
                charts = trade_off([only(loaded, experiment.variants)], paper_metrics(loaded), ("seconds",))
                self.curves[f"Figure 5: quality over time, {experiment.title} ({loaded.name})"] = charts

    # ------------------------------------------------------------------------------------------ times alone
    def time(self, arch: str, experiments: Sequence[Experiment] | None = None) -> None:
        """Time what experiments ask for on an architecture with random weights; all that fit it by default."""
        kind = "unet" if arch in UNETS else "transformer"
        experiments = experiments_of(TABLES, kind) if experiments is None else experiments
        side = None if self.scale.size is None else self.scale.size[0]
        steps = architecture_steps(arch, [side], self.scale.depth, self.scale.batch, *self.how[:2])
        ((size, workload),) = steps
        wanted, refused = supported_variants(workload.target, variants_of(experiments))
        rows = self._timed(self.folder / f"arch-{arch}-{size}.json", workload, wanted)
        notes = [*ARCH_NOTES, *(f"Left out {line}" for line in refused)]
        self.outcomes += [timed_outcome(one, workload.title, rows, notes) for one in experiments]

    def _timed(self, path: Path, workload: Workload, wanted: Sequence[Variant]) -> Rows:
        rounds, names = self.scale.rounds or ARCH_ROUNDS, [list(one.group) for one in wanted]
        settings = {"model": workload.title, "batch": self.scale.batch, "rounds": rounds, "variants": names}

        def make(journal: Journal) -> Rows:
            with bar(len(wanted) * (rounds + 1), shown=self.shown, doing="timing") as advance:
                timed = time_all(workload, wanted, rounds, lambda: advance(1), journal, self.failures)
                return [one.as_row() for one in timed]

        rows = kept(path, {**settings, **self._place()}, TIMED_ROW, make)
        if len(rows) < len(wanted):
            path.unlink(missing_ok=True)  # what failed is tried again
        return rows

    def merge_speed(self, table: int) -> None:
        """Table 4 or 5."""
        device, rounds = models.device_of(self.how[0]), self.scale.rounds or merge_speed.ROUNDS
        dtype, size = dtype_of(self.how[1], device), MERGE_SPEED[table]

        def make(journal: Journal) -> Rows:
            with bar(len(merge_speed.RATIOS), shown=self.shown, doing=f"merging {size} tokens") as advance:
                done = partial(advance, 1)
                timings = merge_speed.measure(
                    [size], rounds=rounds, device=device, dtype=dtype, done=done, journal=journal
                )
            return [one.as_row() for one in timings]

        path = self.folder / f"merging-{size}.json"
        rows = kept(path, {"rounds": rounds, **self._place()}, merge_speed.TIMING, make)
        self.outcomes.append(merging_outcome(table, [merge_speed.Timing(**row) for row in rows]))

    def _place(self) -> dict[str, Any]:
        """Where things are timed; the rest of the machine is the journal's to tell."""
        own = environment(models.device_of(self.how[0]).type, self.how[1] or "default")
        return {"on": own["device"], "with": own["dtype"]}


def variants_of(experiments: Sequence[Experiment]) -> list[Variant]:
    """Everything that they compare, once."""
    return list(dict.fromkeys(each for one in experiments for each in one.variants))


def kind_of(pipe: Any) -> str:
    """Whether a UNet or a transformer denoises."""
    return "unet" if getattr(pipe, "unet", None) is not None else "transformer"


def folder_of(model: str) -> str:
    """A name for a model's run: ``"owner/name"`` → ``"owner--name"``, ``"./saved/mine"`` → ``"mine"``."""
    path = Path(model)
    return path.resolve().name if path.is_dir() else model.replace("/", "--")
