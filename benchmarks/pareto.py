"""FLOPs against distance, for every method in one chart; ``python -m benchmarks.pareto``.

Reads the results of :mod:`benchmarks.fidelity` and writes ``docs/images/pareto.png``, a column for each model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from benchmarks.fidelity import RESULTS
from benchmarks.fidelity_report import IMAGES, MODELS
from benchmarks.fidelity_results import Measured, Results
from benchmarks.front import settings
from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart, sheet

NOTES = {
    "psnr": "PSNR against the unmerged image, dB: higher is nearer",
    "judge": "judge distance from the unmerged image: lower is nearer",
}
SHOWN = {  # name: whether dashed, which mergers are
    "forecast by tolerance": False,
    "forecast in a pattern": False,
    "forecast in a pattern + merging": False,
    "DeepCache": False,
    "FirstBlockCache": False,
    "TaylorSeer": False,
    "MagCache": False,
    "SeaCache": False,
    "DBCache (cache-dit)": False,
    "skipping, last output again": False,
    "ToMA": True,
    "ToMA as in the paper": True,
    "ToMeSD, all ops": True,
    "ToFu, all ops": True,
    "ToMeSD": True,
    "ToFu": True,
}


def chart(results: Results, measure: str) -> Image.Image:
    """FLOPs against one distance."""
    title = f"{results.model}, {results.steps} steps"
    lines = list(curves(results, measure))
    return line_chart(title, NOTES[measure], "FLOPs left, %", lines, (620, 580), percent=False)


def curves(results: Results, measure: str) -> Iterator[Line]:
    """Every line that has points."""
    for place, (title, dashed) in enumerate(SHOWN.items()):
        shown = [one for one in settings(results, title) if math.isfinite(_distance(one, measure))]  # not equal images
        found = front(sorted(shown, key=lambda one: one.cost), measure)
        if found:
            yield _line(title, found, measure, place, dashed)


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


def _line(title: str, found: Sequence[Measured], measure: str, colour: int, dashed: bool) -> Line:
    points = tuple((100 * one.cost, one.mean(measure).value) for one in found)
    dots = frozenset(x for x, _ in points)
    return Line(title, points, COLOURS[colour % len(COLOURS)], dashed=dashed, dots=dots)


def pareto(folder: Path, models: Sequence[str] = MODELS) -> Image.Image | None:
    """A column for each model, with the number of steps that most settings were generated for; ``None`` without any."""
    read = [every for model in models if (every := Results.read(folder, model))]
    most = [max(every, key=lambda one: len(one.measured)) for every in read]
    found = [results for results in most if results.measured]
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
