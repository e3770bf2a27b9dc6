"""The outcome of ``tomadiff paper`` as one page: images and curves first, then every table next to its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tomadiff.evaluation.paper.claims import Judged
from tomadiff.evaluation.paper.outcomes import Outcome
from tomadiff.evaluation.paper.published import PUBLISHED, SOURCE
from tomadiff.evaluation.paper.text import COLUMNS_EXPLAINED, EXPLAINED, MARKS, TITLE, claim_of, heading_of, summary
from tomadiff.evaluation.report.markup import Markup, tag
from tomadiff.evaluation.report.page_parts import document, facts, figure, folded, table
from tomadiff.evaluation.report.report import Figure


def page(
    outcomes: Sequence[Outcome],
    figures: Sequence[Figure],
    curves: Mapping[str, Markup | None],
    machine: Mapping[str, Any],
) -> str:
    """The whole file; ``curves`` are charts by their title."""
    header = tag("header", tag("h1", TITLE), tag("p", summary(outcomes), class_="lead soft"))
    body = [
        header,
        _claims(outcomes),
        [figure(one) for one in figures],
        [tag("section", tag("h2", title), charts) for title, charts in curves.items() if charts],
        [_chapter(outcome) for outcome in outcomes],
        facts("How this was made", {**machine, "published figures": SOURCE}),
    ]
    return document(TITLE, body)


def _claims(outcomes: Sequence[Outcome]) -> Markup:
    """All verdicts at a glance."""
    rows = [
        (claim_of(one), f"{MARKS[one.verdict]} {one.verdict.value}", outcome.table, outcome.model)
        for outcome in outcomes
        for one in outcome.judged
    ]
    shown = table("Claims", ("claim", "verdict", "table", "model"), rows)
    return tag("section", tag("h2", "Claims"), tag("p", f"{EXPLAINED} {COLUMNS_EXPLAINED}", class_="soft"), shown)


def _chapter(outcome: Outcome) -> Markup:
    cells = [[(value, tag("small", spread) if spread else None) for value, spread in row] for row in outcome.rows]
    numbers = table(heading_of(outcome), outcome.headings, cells) if cells else None
    known = PUBLISHED.get(outcome.table, ())
    rows = [(one.what, one.figure, one.where) for one in known]
    published = folded("As published", table("As published", ("what", "figure", "where"), rows)) if known else None
    notes = [tag("p", note, class_="soft") for note in outcome.notes]
    return tag(
        "section", tag("h2", heading_of(outcome)), numbers, [_found(one) for one in outcome.judged], published, notes
    )


def _found(judged: Judged) -> Markup:
    found = [tag("li", f"{MARKS[one.verdict]} {one.words}") for one in judged.findings]
    words = f"{MARKS[judged.verdict]} {judged.verdict.value}: {claim_of(judged)}"
    return folded(words, tag("ul", found))
