"""The outcome of ``tomadiff paper`` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tomadiff.evaluation.paper.claims import ENOUGH, Judged, Verdict, counts
from tomadiff.evaluation.paper.outcomes import Outcome
from tomadiff.evaluation.paper.published import PUBLISHED, SOURCE
from tomadiff.evaluation.report.report import Figure, line, plain
from tomadiff.evaluation.runs.variants import UNGUARDED

TITLE = "The paper's claims, on this model"
MARKS = {Verdict.HOLDS: "✓", Verdict.OPEN: "?", Verdict.FAILS: "✗", Verdict.UNTESTED: "–"}
EXPLAINED = (
    "A claim reproduces if the 95 % interval of every difference it stands on lies on its side, does not if one lies "
    f"on the other, and cannot be told in between or with fewer than {ENOUGH} samples. {UNGUARDED}"
)

COLUMNS_EXPLAINED = (
    "Rows named (paper) have the paper's settings, those named (default) this library's. All others are the model in "
    "full, the speed limit, and methods of others. Speed-ups are ratios of minima: the fastest image in full by the "
    "fastest of a row. Paired ones are geometric means over equal prompts and seeds, and claims about time rest on "
    "them. FID and judge-FD are against the unmerged set, those named (reference) against a folder of images."
)


def markdown(outcomes: Sequence[Outcome], machine: Mapping[str, Any], figures: Mapping[str, Figure]) -> str:
    """Everything; ``figures`` by the names of their files, which lie beside it."""
    parts = [f"# {TITLE}", summary(outcomes), EXPLAINED, COLUMNS_EXPLAINED, f"Published figures are from: {SOURCE}."]
    for outcome in outcomes:
        parts += _chapter(outcome)
    for name, figure in figures.items():
        parts += [f"## {plain(figure.title)}", f"![{plain(figure.title)}]({name})", plain(figure.note)]
    parts.append("Machine: " + plain(", ".join(f"{key} {value}" for key, value in machine.items())))
    return "\n\n".join(parts) + "\n"


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many of the paper's claims there are of each verdict; those about the default are not counted."""
    judged = [one for outcome in outcomes for one in outcome.judged if not one.claim.about_default]
    told = [f"{verdict.value} {number}" for verdict, number in counts(judged).items() if number]
    return f"The paper's claims looked at, {len(judged)} in all: {', '.join(told) or 'none'}."


def heading_of(outcome: Outcome) -> str:
    """``Table 2: how destinations are chosen (emoji-sdxl)``."""
    return f"Table {outcome.table}: {outcome.title} ({outcome.model})"


def claim_of(judged: Judged) -> str:
    """A claim in one line, with who makes it."""
    return f"{'The default: ' if judged.claim.about_default else ''}{judged.claim.text}"


def _chapter(outcome: Outcome) -> list[str]:
    parts = [f"## {plain(heading_of(outcome))}"]
    if outcome.rows:
        lines = [line(outcome.headings), line(["---", *["--:"] * (len(outcome.headings) - 1)])]
        parts.append(
            "\n".join([*lines, *(line([plain(" ".join(filter(None, cell))) for cell in row]) for row in outcome.rows)])
        )
    for one in outcome.judged:
        found = "\n".join(f"  - {MARKS[each.verdict]} {plain(each.words)}" for each in one.findings)
        parts.append(f"- {MARKS[one.verdict]} **{one.verdict.value}**: {plain(claim_of(one))}\n{found}")
    published = [f"- {one.what}: {one.figure} ({one.where})" for one in PUBLISHED.get(outcome.table, ())]
    parts.append("\n".join(["As published:", "", *published]) if published else "")
    parts.append("\n".join(f"- {plain(note)}" for note in outcome.notes))
    return list(filter(None, parts))
