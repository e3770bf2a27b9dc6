"""FLOPs against distance, for every method in one chart; ``python -m benchmarks.pareto``.

Reads the results of :mod:`benchmarks.fidelity` and writes ``docs/images/pareto.png``, a column for each model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from benchmarks.candidates import RATIOS
from benchmarks.fidelity import RESULTS
from benchmarks.fidelity_report import IMAGES, MODELS
from benchmarks.fidelity_results import Measured, Results, is_alone, kind_of_cache
from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart, sheet

NOTES = {
    "psnr": "PSNR against the unmerged image, dB: higher is nearer",
    "judge": "judge distance from the unmerged image: lower is nearer",
}
METHODS = {  # title: name, place of the colour, dashed
    "ToMA as in the paper": ("toma-paper", 1, False),
    "ToMeSD, all ops": ("tomesd-all", 2, False),
    "ToMeSD": ("tomesd", 2, True),
    "ToFu, all ops": ("tofu-all", 3, False),
    "ToFu": ("tofu", 3, True),
    "ToDo": ("todo", 4, False),
}


def chart(results: Results, measure: str) -> Image.Image:
    """FLOPs against one distance."""
    title = f"{results.model}, {results.steps} steps"
    lines = list(curves(results, measure))
    return line_chart(title, NOTES[measure], "FLOPs left, %", lines, (620, 580), percent=False)


def curves(results: Results, measure: str) -> Iterator[Line]:
    """Every line that has points."""
    lines: dict[str, tuple[list[Measured], int, bool]] = {"ToMA": (_chosen(results), 0, False)}
    for title, (name, colour, dashed) in METHODS.items():
        lines[title] = _measured(results, [f"{name} {ratio:.2f}" for ratio in RATIOS]), colour, dashed
    names = [one.name for one in results.measured_of("caches")]
    for colour, kind in enumerate(dict.fromkeys(map(kind_of_cache, names)), start=5):
        own = [name for name in names if kind_of_cache(name) == kind]
        title = "reuse of ops" if kind == "reuse" else kind
        for shown, wanted in ((title, True), (f"ToMA + {title}", False)):
            found = _measured(results, [name for name in own if is_alone(name) == wanted])
            lines[shown] = front(found, measure), colour, not wanted
    for title, (found, colour, dashed) in lines.items():
        if found:
            yield _line(title, found, measure, colour, dashed)


def front(found: Sequence[Measured], measure: str) -> list[Measured]:
    """Of settings by rising cost, those that are nearer than all that cost no more: caches have two knobs or more."""
    kept: list[Measured] = []
    for one in found:
        if not kept or _distance(one, measure) < _distance(kept[-1], measure):
            kept = [*(other for other in kept if other.cost < one.cost), one]
    return kept


def _distance(one: Measured, measure: str) -> float:
    value = one.mean(measure).value
    return -value if measure == "psnr" else value


def _measured(results: Results, names: Sequence[str]) -> list[Measured]:
    return sorted((one for one in map(results.get, names) if one), key=lambda one: one.cost)


def _chosen(results: Results) -> list[Measured]:
    """The default as the rule chooses it, for every cost there is."""
    chosen = {one.name: one for one in (results.within(own.cost) for own in results.measured_of("matched")) if one}
    return sorted(chosen.values(), key=lambda one: one.cost)


def _line(title: str, found: Sequence[Measured], measure: str, colour: int, dashed: bool) -> Line:
    points = tuple((100 * one.cost, one.mean(measure).value) for one in found)
    dots = frozenset(x for x, _ in points)
    return Line(title, points, COLOURS[colour % len(COLOURS)], dashed=dashed, dots=dots)


def pareto(folder: Path, models: Sequence[str] = MODELS) -> Image.Image | None:
    """A column for each model that was generated, at its largest number of steps; ``None`` if there is none."""
    found = [every[0] for model in models if (every := Results.read(folder, model)) and every[0].measured]
    return sheet([[chart(results, measure) for results in found] for measure in NOTES]) if found else None


def main(given: Sequence[str] | None = None) -> None:
    """Write the chart, if there is something to show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    parser.add_argument("--out", type=Path, default=IMAGES / "pareto.png")
    wanted = parser.parse_args(given)
    image = pareto(wanted.results)
    if image is None:
        print(f"There is nothing to show in {wanted.results}; run python -m benchmarks.fidelity first.")
        return
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    image.save(wanted.out, optimize=True)
    print(f"Wrote {wanted.out}.")


if __name__ == "__main__":
    main()
