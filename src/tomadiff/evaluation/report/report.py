"""``tomadiff report``: what runs generated and measured, as one page to look at and as a table to paste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from PIL import Image

from tomadiff.evaluation.metrics import distances
from tomadiff.evaluation.metrics.distances import metric
from tomadiff.evaluation.metrics.features import to_pixels
from tomadiff.evaluation.metrics.samples import Group, Pair, PairKey, grouped, matched, resampled
from tomadiff.evaluation.metrics.statistics import Interval, mean_interval, ratio_interval
from tomadiff.evaluation.metrics.table import Results, Row
from tomadiff.evaluation.runs.record import Run, RunError, Sample
from tomadiff.evaluation.runs.variants import FULL, RECOMMENDED, UNGUARDED
from tomadiff.methods.registry import CATALOGUE, PAPER, entry


@dataclass(frozen=True)
class Figure:
    """An image to show beside those of a run."""

    title: str
    image: Image.Image
    note: str = ""


@dataclass(frozen=True)
class LoadedRun:
    """A run with its results, as reports need it.

    Attributes:
        name: of its folder, made unique.
        run: the folder.
        results: measured before, or pixels alone.
        speed_ups: seconds of the full image by those of the same prompt and seed, the geometric mean.
        notes: what a reader must know about the numbers.
    """

    name: str
    run: Run
    results: Results
    speed_ups: dict[Group, Interval]
    notes: list[str] = field(default_factory=list)

    @property
    def merged(self) -> list[Row]:
        """Rows of methods."""
        return [row for row in self.results.rows if row.method != self.results.reference]

    @property
    def full(self) -> Row | None:
        """The row they are compared with."""
        return next((row for row in self.results.rows if row.method == self.results.reference), None)


def load_runs(folders: Sequence[Path]) -> list[LoadedRun]:
    """Read runs."""
    names = _unique([folder.resolve().name for folder in folders])
    return [_loaded(name, Run(folder)) for name, folder in zip(names, folders, strict=True)]


def _unique(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]


def _loaded(name: str, run: Run) -> LoadedRun:
    _ = run.config  # raises where the folder is no run
    groups = grouped(run)
    if not groups:
        raise RunError(f"{run.folder} holds no finished image yet; generate some with `tomadiff eval`.")
    notes: list[str] = []
    results = _measured(run, groups, notes)
    notes += [f"{metric(missing).title} was not measured. {why}" for missing, why in results.missing.items()]
    notes += [UNGUARDED] if any(method != FULL for method, _ in groups) else []
    return LoadedRun(name, run, results, _speed_ups(groups, results.reference), notes)


def _measured(run: Run, groups: dict[Group, dict[PairKey, Sample]], notes: list[str]) -> Results:
    """``summary.json`` where it counts the images that are there; else pixels, measured now and not written."""
    counts = {group: len(samples) for group, samples in groups.items()}
    if not (run.folder / "summary.json").exists():
        notes.append("This run was not measured yet: MSE, PSNR and SSIM are measured for this report.")
        return pixel_results(run)
    results = Results.load(run.folder)
    if counts != {(row.method, row.ratio): row.count for row in results.rows}:
        notes.append("Images were added since this run was measured: the report measured pixels again, alone.")
        return pixel_results(run)
    return results


# ---------------------------------------------------------------------------------------------- pixels
def pixel_results(run: Run) -> Results:
    """MSE, PSNR and SSIM against the full images; nothing is written."""
    groups = grouped(run)
    anchors = groups.get((FULL, 0.0), {})
    order = sorted(groups, key=lambda group: (group[0] != FULL, group))
    rows = []
    for group in order:
        samples = list(groups[group].values())
        pairs = [] if group[0] == FULL else matched(groups[group], anchors)
        seconds, flops = median(one.seconds for one in samples), sum(one.flops for one in samples) / len(samples)
        rows.append(Row(*group, len(samples), seconds, flops, _pixels(run, pairs)))
    return Results(FULL, tuple(rows))


def _pixels(run: Run, pairs: list[Pair]) -> dict[str, Interval]:
    both = [(run.image(own.key), run.image(other.key)) for own, other in pairs]
    if not both or any(one.size != other.size for one, other in both):
        return {}
    values: dict[str, list[float]] = {}
    for one, other in both:  # one at a time: a run may hold thousands
        for name, value in distances.pixel_metrics(to_pixels([one]), to_pixels([other])).items():
            values.setdefault(name, []).append(value.item())
    prompts = resampled([sample.prompt for sample, _ in pairs])
    return {name: mean_interval(torch.tensor(numbers), prompts) for name, numbers in values.items()}


def _speed_ups(groups: dict[Group, dict[PairKey, Sample]], reference: str) -> dict[Group, Interval]:
    anchor = next((samples for group, samples in groups.items() if group[0] == reference), {})
    found = {}
    for group, samples in groups.items():
        timed = [pair for pair in matched(samples, anchor) if min(own.seconds for own in pair) > 0]
        if timed and group[0] != reference:
            ratios = torch.tensor([other.seconds / own.seconds for own, other in timed])
            found[group] = ratio_interval(ratios, resampled([own.prompt for own, _ in timed]))
    return found


# ---------------------------------------------------------------------------------------------- words for all forms
def title_of(method: str) -> str:
    """What a method is called, with its forecast; one that is not in the catalogue keeps its own name."""
    merging, told, tolerance = method.rpartition("forecast-")
    if told:
        return " + ".join([*([title_of(merging.removesuffix("+"))] if merging else []), f"forecast {tolerance}"])
    if method in (*CATALOGUE, *PAPER):
        return entry(method).title
    return {FULL: "in full", RECOMMENDED: "apply(pipe)"}.get(method, method.removeprefix(f"{RECOMMENDED}-"))


def label_of(method: str, ratio: float) -> str:
    """A method with its ratio, if it merges."""
    return f"{title_of(method)}, {ratio:.0%}" if ratio else title_of(method)


def columns(runs: Sequence[LoadedRun]) -> list[str]:
    """The metrics that some run has, in their usual order."""
    together = Results(FULL, tuple(row for loaded in runs for row in loaded.results.rows))
    return list(together.columns)


def heading(name: str) -> str:
    """A metric's title with the direction that is better."""
    return f"{metric(name).title} {'↑' if metric(name).better == 'higher' else '↓'}"


def number(interval: Interval | None, digits: int) -> tuple[str, str]:
    """The value, and its interval apart from it."""
    if interval is None:
        return "–", ""
    digits = interval.digits(digits)
    low, high = (f"{end:z.{digits}f}" for end in (interval.low, interval.high))
    return f"{interval.value:z.{digits}f}", "" if interval.count < 2 else f"[{low}, {high}]"


def cells(loaded: LoadedRun, row: Row, names: Sequence[str]) -> list[tuple[str, str]]:
    """The numbers of a table's row, each with its interval: seconds, speed-up, FLOPs, then the metrics."""
    fast = loaded.speed_ups.get((row.method, row.ratio))
    value, spread = number(fast, 2)
    counted = f"{row.flops / 1e12:.3g}" if row.flops else "–"
    return [
        (f"{row.seconds:.3g}", ""),
        (f"{value}×" if fast else "–", spread),
        (counted, ""),
        *(number(row.metrics.get(name), metric(name).digits) for name in names),
    ]


HEADINGS = ("method", "merged", "images", "seconds", "speed-up", "TFLOPs")


# ---------------------------------------------------------------------------------------------- Markdown
def markdown(runs: Sequence[LoadedRun]) -> str:
    """The table of every run, its notes, and the machine it ran on."""
    names = columns(runs)
    parts = ["# Token merging, compared"]
    for loaded in runs:
        parts += [f"## {plain(loaded.name)}", _table(loaded, names), *(f"- {plain(note)}" for note in loaded.notes)]
        parts.append("Machine: " + plain(", ".join(f"{key} {value}" for key, value in loaded.run.environment.items())))
    return "\n\n".join(parts) + "\n"


def _table(loaded: LoadedRun, names: Sequence[str]) -> str:
    lines = [line([*HEADINGS, *map(heading, names)]), line(["---", *["--:"] * (5 + len(names))])]
    for row in loaded.results.rows:
        own = [" ".join(filter(None, cell)) for cell in cells(loaded, row, names)]
        lines.append(line([plain(title_of(row.method)), f"{row.ratio:.0%}", str(row.count), *own]))
    return "\n".join(lines)


def line(parts: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(parts)} |"


def plain(text: str) -> str:
    """Names come from files: nothing in them may become markup or break a table."""
    kept = " ".join(str(text).split())
    for mark in "\\`*_[]|":
        kept = kept.replace(mark, f"\\{mark}")
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
