"""The page of ``tomadiff inspect``: pictures first, then their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tomadiff.evaluation.inspect.inspection import INTERVAL, Inspection, Level
from tomadiff.evaluation.inspect.plan_times import Times
from tomadiff.evaluation.report.markup import Markup, tag
from tomadiff.evaluation.report.page_parts import document, facts, figure, folded, table
from tomadiff.evaluation.report.report import Figure

TITLE = "What merging does"


def page(found: Inspection, figures: Mapping[str, Figure], about: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """The whole file; ``about`` says what was drawn, ``machine`` where."""
    numbers = {
        "coverage": folded("Coverage in numbers", _coverage(found.levels)),
        "overlap": folded("Overlap in numbers", _overlaps(found.levels)),
    }
    body = [
        _header(found, about),
        [figure(shown, numbers.get(name)) for name, shown in figures.items()],
        _costs(found.levels),
        facts("How this was made", {**about, "settings": found.settings, **machine}),
    ]
    return document(TITLE, body)


def _header(found: Inspection, about: Mapping[str, Any]) -> Markup:
    words = f"“{about['prompt']}”, seed {about['seed']}, drawn by {about['model']}: {found.title}."
    followed = f"{len(found.levels)} of {found.slots} plans are shown." if found.slots > len(found.levels) else None
    lead = [tag("p", text, class_="lead soft") for text in (words, followed) if text]
    return tag("header", tag("h1", TITLE), lead, tag("div", [_card(level) for level in found.levels], class_="cards"))


def _card(level: Level) -> Markup:
    plan, steps = level.watched.plan, level.overlap
    later = steps.by_distance[1:2]
    words = [f"{level.name}, {plan.grid} tokens", f"coverage {level.watched.looks[-1].coverage:.3f} at the end"]
    words += [f"{share:.0%} of destinations last a step (chance: {steps.chance:.0%})" for share in later]
    lines = [(tag("span", line), tag("br")) for line in words]
    return tag("div", tag("b", f"{plan.tokens} → {plan.kept}"), lines, class_="card")


def _coverage(levels: Sequence[Level]) -> list[Markup]:
    tables = []
    for level in levels:
        looks = level.watched.looks
        rows = [
            (look.step, f"{look.coverage:.4f}", f"{look.fresh:.4f}", "chosen" if look.selected else "")
            for look in looks
        ]
        tables.append(table(level.name, ("step", "coverage in use", "if chosen anew", "destinations"), rows))
    return tables


def _overlaps(levels: Sequence[Level]) -> list[Markup]:
    """Shares by distance; the matrices are in the picture, and with ``--json``."""
    distances = range(max(len(level.overlap.steps) for level in levels))
    apart = [level.overlap.by_distance for level in levels]
    rows = [(k, *(f"{own[k]:.1%}" if k < len(own) else "–" for own in apart)) for k in distances]
    rows.append(("chance", *(f"{level.overlap.chance:.1%}" for level in levels)))
    return [table(f"Share in common, by steps apart (kept for {INTERVAL} in the paper)", _names(levels), rows)]


def _names(levels: Sequence[Level]) -> list[str]:
    return ["steps apart", *(level.name for level in levels)]


def _costs(levels: Sequence[Level]) -> Markup:
    headings = ("plan", "grid", "tokens", "sites", "memory", "select", "weigh", "merge", "unmerge")
    rows = [
        (
            level.name,
            str(level.watched.grid),
            f"{level.watched.plan.tokens} → {level.watched.plan.kept}",
            level.sites,
            f"{level.watched.plan.nbytes / 1024:.1f} KiB",
            *(_milliseconds(own) for own in level.times.values()),
        )
        for level in levels
    ]
    words = (
        f"Measured on this machine, in this process: the best of {levels[0].runs} runs, and below it the median. "
        "Selecting makes a whole plan, weighing renews its weights alone; merging and unmerging are paid at every site "
        "and step."
    )
    return tag("section", tag("h2", "What plans cost"), tag("p", words, class_="soft"), table("Plans", headings, rows))


def _milliseconds(times: Times) -> list[Any]:
    return [f"{times.least:.3g} ms", tag("small", f"{times.median:.3g} ms")]
