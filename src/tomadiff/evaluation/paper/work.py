"""Doing the paper's experiments: generate, time, and put together what came out. See ``outcomes.py`` for the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tomadiff.embedded import MissingWeightsError
from tomadiff.evaluation.inspect.figures import figures
from tomadiff.evaluation.inspect.inspection import inspect
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.paper.experiment import Experiment
from tomadiff.evaluation.paper.experiments import EXPERIMENTS, MERGE_SPEED, TABLES, experiments_of
from tomadiff.evaluation.paper.figures import INSPECTED, Look, over_time, seen
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
from tomadiff.evaluation.paper.parts import KINDS, by_steps, folder_of, kind_of, kind_of_run, variants_of
from tomadiff.evaluation.report.markup import Markup
from tomadiff.evaluation.report.report import Figure, LoadedRun, load_runs
from tomadiff.evaluation.report.trade_off import trade_off
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.environment import environment
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.generate import call_of
from tomadiff.evaluation.runs.journal import Journal, kept, stored_rows
from tomadiff.evaluation.runs.processes import ProcessGroup
from tomadiff.evaluation.runs.prompts import load_prompts
from tomadiff.evaluation.runs.record import Run
from tomadiff.evaluation.runs.tasks import bar, tasks
from tomadiff.evaluation.runs.variants import Variant, supported_variants
from tomadiff.evaluation.timing import merge_speed
from tomadiff.evaluation.timing.latency import ROW as TIMED_ROW
from tomadiff.evaluation.timing.latency import measure as time_all
from tomadiff.evaluation.timing.workloads import Workload, architecture_steps, dtype_of

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
        reference: a folder of images to compare every set with as well.
        stored: whether nothing is generated or timed: tables are of what the folder holds.
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
    reference: Path | None = None
    stored: bool = False
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
            made = {one.table for one in self.outcomes}
            self.outcomes += [untested(one, name, reason) for one in experiments if one.table not in made]

    def generate(self, model: str, experiments: Sequence[Experiment] | None = None) -> None:
        """Generate and measure what experiments ask for; all that fit the model by default."""
        if self.stored:
            self._show_stored(model, experiments)
            return
        device, dtype, allow_pickle = self.how
        pipe = models.load(model, device or self.group.device, dtype, allow_pickle)
        experiments = experiments_of(TABLES, kind_of(pipe)) if experiments is None else experiments
        wanted, refused = supported_variants(pipe, variants_of(experiments))
        call = call_of(model, pipe, steps=self.scale.steps, size=self.scale.size)
        for own_call, part in by_steps(experiments, call, self.scale.steps):
            place = self.folder / folder_of(model, own_call["num_inference_steps"] if own_call != call else None)
            own = [one for one in variants_of(part) if one in wanted]
            run, failures = self._generated(model, pipe, own, own_call, place)
            self.failures.lines += failures.lines
            if self.group.leads:
                look = partial(self._inspected, pipe, own_call)
                self._add(model, run, part, [*(f"Left out {line}" for line in refused), *failures.lines], look)

    def _generated(
        self, model: str, pipe: Any, wanted: Sequence[Variant], call: dict[str, Any], place: Path
    ) -> tuple[Run, Failures]:
        scale, about = self.scale, models.describe(model, pipe)
        batches = tasks(load_prompts(scale.source, scale.prompts), range(scale.seeds), wanted, scale.batch)
        # Only what an image's name does not say: other prompts, seeds and tables may join the folder.
        config = {**about, "call": call, "batch": scale.batch}
        run = self.group.begin(place, config, environment(about["device"], about["dtype"], self.group.size))
        return run, self.group.run_tasks(pipe, run, batches, call, about, self.shown)

    def _inspected(self, pipe: Any, call: dict[str, Any]) -> tuple[str, dict[str, Figure]]:
        found = inspect(pipe, load_prompts(self.scale.source, 1)[0].text, 0, call, *INSPECTED)
        return found.title, figures(found)

    def _show_stored(self, model: str, experiments: Sequence[Experiment] | None) -> None:
        """Tables of the images that are there; no model is loaded."""
        parts: dict[Path, list[Experiment]] = {}
        for one in EXPERIMENTS if experiments is None else experiments:
            apart = self.folder / folder_of(model, one.steps)
            parts.setdefault(apart if apart.is_dir() else self.folder / folder_of(model), []).append(one)
        for place, part in parts.items():
            if not place.is_dir():
                self.outcomes += [untested(one, model, f"{place} holds nothing yet") for one in part]
                continue
            run = Run(place)
            there = {(sample.method, sample.ratio) for sample in run.samples().values()}
            own = part if experiments is not None else [one for one in part if one.kind == kind_of_run(there)]
            lacking = [one.label for one in variants_of(own) if one.group not in there]
            self._add(model, run, own, [f"No image of {', '.join(lacking)} is stored."] if lacking else [])

    def _add(
        self,
        model: str,
        run: Run,
        experiments: Sequence[Experiment],
        notes: Sequence[str],
        look: Look | None = None,
    ) -> None:
        """Tables, figures and curves out of a run, which is measured first."""
        measure(run, networks=self.networks, reference_images=self.reference)
        steps = run.config["call"]["num_inference_steps"]
        loaded = replace(load_runs([run.folder])[0], name=f"{folder_of(model)}, {steps} steps")
        self.runs.append(loaded)
        for place, experiment in enumerate(experiments):
            once = () if place else (*notes, *loaded.notes)  # they are about all tables of the run
            self.outcomes.append(measured_outcome(experiment, loaded, once))
            self._add_figures(experiment, loaded, look)

    def _add_figures(self, experiment: Experiment, loaded: LoadedRun, look: Look | None) -> None:
        for grid in experiment.figures:
            image = grid_of(grid, loaded)
            if image is not None:
                self._add_figure(str(grid.number), loaded, Figure(grid.title, image, "One prompt in each row."))
        if experiment.curves:
            own, names = only(loaded, experiment.variants), paper_metrics(loaded)
            self.curves[f"Figure 5: quality over time, {experiment.title} ({loaded.name})"] = trade_off(
                [own], names, ("seconds",)
            )
            charts = over_time(own, names)
            if charts is not None:
                self._add_figure(f"5-table-{experiment.table}", loaded, charts)
        for one in experiment.seen:
            with self.failures.of(f"Figure {one.number}"):
                for figure in seen(loaded.run.folder, [one.name], look).values():
                    self._add_figure(str(one.number), loaded, figure)

    def _add_figure(self, number: str, loaded: LoadedRun, figure: Figure) -> None:
        title = f"Figure {number.replace('-', ', ', 1).replace('-', ' ')}: {figure.title} ({loaded.name})"
        self.figures[f"figure-{number}.png"] = replace(figure, title=title)

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
        if self.stored:
            rows = stored_rows(path, merge_speed.TIMING)
        else:
            rows = kept(path, {"rounds": rounds, **self._place()}, merge_speed.TIMING, make)
        self.outcomes.append(merging_outcome(table, [merge_speed.Timing(**row) for row in rows]))

    def _place(self) -> dict[str, Any]:
        """Where things are timed; the rest of the machine is the journal's to tell."""
        own = environment(models.device_of(self.how[0]).type, self.how[1] or "default")
        return {"on": own["device"], "with": own["dtype"]}
