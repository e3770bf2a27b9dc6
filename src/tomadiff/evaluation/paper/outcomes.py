"""``tomadiff paper``: the paper's experiments on the model at hand, and what becomes of its claims.

Images go into an ordinary run (``record.py``), so they survive a kill, may be added to, and have a report of their
own. Times that need no image are kept in a file next to it and are taken again only if something else is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from PIL import Image

from tomadiff.evaluation.metrics.samples import grouped
from tomadiff.evaluation.paper.claims import Claim, Evidence, Finding, Judged, Verdict, judge
from tomadiff.evaluation.paper.evidence import KINDS, MeasuredRun, Timed
from tomadiff.evaluation.paper.experiment import Experiment, Grid
from tomadiff.evaluation.paper.experiments import MERGE_SPEED
from tomadiff.evaluation.report.overlay import image_grid
from tomadiff.evaluation.report.report import LoadedRun, cells, columns, heading, title_of
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.timing.merge_speed import PROMISED, UNPROMISED, Comparison, Timing, compare

SHOWN = 4  # prompts in a grid of images
COLUMNS = (
    "mse",
    "lpips",
    "dino",
    "clip_i",
    "judge",
    "clip_t",
    "judge_t",
    "fid",
    "judge_fid",
    "fid_reference",
    "judge_fid_reference",
)
"""What the paper's tables show, or near it; LPIPS and CLIP's distance besides."""
HEADINGS = ("method", "merged", "images", "least s", "speed-up", "paired", "TFLOPs")
Rows = list[dict[str, Any]]
Cell = tuple[str, str]  # a value, and its interval apart from it


@dataclass(frozen=True)
class Outcome:
    """One table of the paper, made here.

    Attributes:
        table: its number in the paper.
        title: its pair_key.
        model: what it was made with.
        headings: of the columns.
        rows: of cells; the first names the row.
        judged: the paper's claims.
        notes: what a reader must know about the numbers.
    """

    table: int
    title: str
    model: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    judged: tuple[Judged, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        claims = [
            {
                "claim": one.claim.text,
                "about_default": one.claim.about_default,
                "verdict": one.verdict.value,
                "findings": [{"verdict": each.verdict.value, "words": each.words} for each in one.findings],
            }
            for one in self.judged
        ]
        return {**asdict(replace(self, judged=())), "judged": claims}


# ---------------------------------------------------------------------------------------------- images
def measured_outcome(experiment: Experiment, loaded: LoadedRun, notes: Sequence[str] = ()) -> Outcome:
    """A table out of a measured run."""
    own, evidence = only(loaded, experiment.variants), MeasuredRun(loaded.run, loaded.results)
    names = [name for name in columns([own]) if name.removesuffix("_reference") in COLUMNS]
    least = {group: min(one.seconds for one in samples.values()) for group, samples in evidence.groups.items()}
    rows = []
    for row in own.results.rows:
        _, paired, *others = cells(own, row, names)
        best, full = least[row.method, row.ratio], least[loaded.results.reference, 0.0]
        times = _plain(f"{best:.3g}", f"{full / best:.2f}×" if best else "–")
        rows.append((*_plain(title_of(row.method), f"{row.ratio:.0%}", str(row.count)), *times, paired, *others))
    headings = (*HEADINGS, *map(heading, names))
    return _outcome(experiment, loaded.name, headings, rows, evidence, notes)


def _plain(*values: str) -> tuple[Cell, ...]:
    return tuple((value, "") for value in values)


def only(loaded: LoadedRun, wanted: Sequence[Variant]) -> LoadedRun:
    """A run as if nothing else had been generated; rows in the order of ``wanted``."""
    rows = {(row.method, row.ratio): row for row in loaded.results.rows}
    kept = tuple(rows[variant.group] for variant in wanted if variant.group in rows)
    return replace(loaded, results=replace(loaded.results, rows=kept))


def _outcome(
    experiment: Experiment,
    model: str,
    headings: Sequence[str],
    rows: Sequence[tuple[Cell, ...]],
    evidence: Evidence,
    notes: Sequence[str],
) -> Outcome:
    judged = tuple(judge(claim, evidence) for claim in experiment.claims)
    all_notes = (experiment.scaling, *notes)
    return Outcome(experiment.table, experiment.title, model, tuple(headings), tuple(rows), judged, all_notes)


def untested(experiment: Experiment, model: str, reason: str) -> Outcome:
    """A table that could not be made."""
    return _outcome(experiment, model, ("method",), [], Timed({}), [f"Not made: {reason}"])


def paper_metrics(loaded: LoadedRun) -> list[str]:
    """Those of a run's metrics that stand for what the paper plots over time."""
    found = (MeasuredRun(loaded.run, loaded.results).metric(kind) for kind in KINDS)
    return [name for name in found if name is not None]


def grid_of(grid: Grid, loaded: LoadedRun) -> Image.Image | None:
    """One of the paper's figures of images, or ``None`` if no prompt has all of its columns."""
    groups = grouped(loaded.run)
    own = [groups.get(variant.group, {}) for variant in grid.columns]
    shared = [pair_key for pair_key in own[0] if all(pair_key in group for group in own)][:SHOWN]
    if not shared:
        return None
    rows = []
    for pair_key in shared:
        samples = [group[pair_key] for group in own]
        notes = [f"{sample.seconds:.2f} s" for sample in samples]
        rows.append((samples[0].prompt, [loaded.run.image(sample.key) for sample in samples], notes))
    return image_grid(rows, [_head(variant) for variant in grid.columns])


def _head(variant: Variant) -> str:
    """Short enough for a column of an image."""
    title = title_of(variant.name).removesuffix(" (paper)").partition(",")[0].partition(" (")[0]
    return "original" if variant.method is None else f"{title} {variant.ratio:.0%}"


# ---------------------------------------------------------------------------------------------- times alone
def timed_outcome(experiment: Experiment, model: str, rows: Rows, notes: Sequence[str] = ()) -> Outcome:
    """A table out of the rows of :class:`tomadiff.evaluation.timing.latency.Measurement`; quality stays open."""
    own = {(row["method"], row["ratio"]): row for row in rows}
    kept = [own[variant.group] for variant in experiment.variants if variant.group in own]
    shown = [
        _plain(
            row["title"],
            f"{row['ratio']:.0%}",
            f"{row['seconds_min']:.3f}",
            f"{row['seconds_median']:.3f}",
            f"{row['speed_up']:.2f}×",
            f"{row['flops'] / 1e12:.3g}",
        )
        for row in kept
    ]
    headings = ("method", "merged", "min s", "median s", "speed-up", "TFLOPs")
    evidence = Timed({group: tuple(row["seconds"]) for group, row in own.items()})
    return _outcome(experiment, model, headings, shown, evidence, notes)


def merging_outcome(table: int, timings: Sequence[Timing], notes: Sequence[str] = ()) -> Outcome:
    """Table 4 or 5: a row for each ratio and op, a column for each contender and for how much faster it is."""
    own = [timing for timing in timings if timing.tokens == MERGE_SPEED[table]]
    titles, pairs = list(dict.fromkeys(timing.title for timing in own)), compare(own, (*PROMISED, *UNPROMISED))
    best = {(timing.ratio, timing.op, timing.title): timing.best for timing in own}
    times_as_fast = {(pair.own.ratio, pair.own.op, pair.own.title): 1 / pair.share for pair in pairs}
    named = [title for title in titles if any(title == pair.own.title for pair in pairs)]
    rows = [
        _plain(
            f"{op}, {ratio:.0%}",
            *(f"{best[ratio, op, title] * 1000:.2f} ms" for title in titles),
            *(f"{times_as_fast[ratio, op, title]:.2f}×" for title in named),
        )
        for ratio, op in dict.fromkeys(key[:2] for key in best)
    ]
    headings = ("", *titles, *(f"{title}, as fast as ToMeSD" for title in named))
    judged = [_merges_faster(claim, group, pairs) for claim, group in merging_claims(table).items()]
    title = f"merging and unmerging {MERGE_SPEED[table]} tokens"
    all_notes = ("Milliseconds of the fastest of interleaved rounds, with plans made beforehand.", *notes)
    return Outcome(table, title, f"{own[0].channels} channels", headings, tuple(rows), tuple(judged), all_notes)


def merging_claims(table: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """What table 4 or 5 claims, each with its op and the methods that it is about here."""
    size = MERGE_SPEED[table]
    return {
        f"ToMA's {op} of {size} tokens is faster than ToMeSD's at every ratio (here: {where})": (
            op,
            names,
        )
        for op in ("merge", "unmerge")
        for where, names in (("in tiles and in stripes", PROMISED), ("over the whole grid", UNPROMISED))
    }


def _merges_faster(words: str, group: tuple[str, tuple[str, ...]], pairs: Sequence[Comparison]) -> Judged:
    """Best rounds are compared as they are: noise only ever adds."""
    op, names = group
    own = [pair for pair in pairs if pair.own.op == op and pair.own.method in names]
    findings = tuple(Finding(Verdict.HOLDS if pair.share < 1 else Verdict.FAILS, str(pair)) for pair in own)
    if not findings:
        return Judged(Claim(words, ()), Verdict.UNTESTED, (Finding(Verdict.UNTESTED, "it was not timed"),))
    verdict = Verdict.FAILS if any(one.verdict is Verdict.FAILS for one in findings) else Verdict.HOLDS
    return Judged(Claim(words, ()), verdict, findings)
