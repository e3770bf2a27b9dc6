"""Which steps of an image were computed: a line of words, and a square for each step."""

from __future__ import annotations

from tomadiff.evaluation.report.markup import Markup, joined, tag
from tomadiff.steps.run import Pattern


def steps_shown(pattern: Pattern, why: str = "") -> Markup:
    """What a forecast did; empty where there is none.

    Args:
        pattern: which steps were computed and which were forecast.
        why: the reason for these settings, where they were chosen for the run.
    """
    parts = [_sentence(why)] if why else []
    if pattern.forecast:
        parts.append(f"{pattern}: {', '.join(str(step + 1) for step in pattern.computed)}.")
        most = (len(pattern.computed) + len(pattern.forecast)) / len(pattern.computed)
        parts.append(f"Forecasts alone make the denoiser at most {most:.2f}× as fast; times of one image are rough.")
    line = tag("p", " ".join(parts), class_="soft") if parts else None
    return joined([line, _squares(pattern) if pattern.forecast else None])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _squares(pattern: Pattern) -> Markup:
    """Filled for a computed step; for the eye alone, since the line says the same."""
    steps = sorted((*pattern.computed, *pattern.forecast))
    squares = [tag("span", step + 1, class_="computed" if step in pattern.computed else None) for step in steps]
    legend = tag("p", "Filled: computed. Outlined: forecast from the steps before.", class_="soft")
    return joined([tag("div", squares, class_="steps", aria_hidden="true"), legend])
