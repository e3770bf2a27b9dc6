"""Tables, curves and promises from what was timed; ``python -m benchmarks.speed_report``.

Reads the results of :mod:`benchmarks.speed`, :mod:`benchmarks.speed_counted` and :mod:`benchmarks.speed_guard`; fits
the constants of :mod:`tomadiff.cost` to the steps of SDXL at 512², and says how far off they are everywhere else.
Writes the section of ``docs/results/speed.md`` and two images, and fails if a promise is broken.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from benchmarks import speed, speed_guard
from benchmarks.flops import put_in_section
from benchmarks.rows import least, where
from benchmarks.speed import BASELINE, CONTENDERS, RATIOS, ROOT, Case, title_of
from benchmarks.speed_results import FITTED, Predict, Promise, Results, fitted_machine, predictions, predictor, promises
from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart, sheet
from tomadiff.evaluation.runs.rows import Row, append

PAGE, IMAGES = ROOT / "docs" / "results" / "speed.md", ROOT / "docs" / "images"
PREDICTED = ROOT / "benchmarks" / "results" / "speed_predicted.csv"
BEGIN, END = "<!-- speed: written by python -m benchmarks.speed_report -->", "<!-- speed: end -->"
SHOWN = ("toma", "toma-paper", "toma-once", "toma-whole", "tomesd", "tofu", "bound")
SIZES = tuple(Case("sdxl", size) for size in (256, 512, 1024, 2048))


def table(results: Results, case: Case, predict: Predict | None) -> str:
    """Measured speed-ups of one case, with the predicted ones behind."""
    heads = [f"{ratio:g}".lstrip("0") for ratio in RATIOS]
    lines = [_line([case.title, *heads, "FLOPs at .5", "launches", "live MiB inside blocks"])]
    lines.append(_line(["---", *["---:"] * 6]))
    limits = [results.limit(case, ratio) for ratio in RATIOS]
    lines.append(_line(["*limit: FLOPs alone*", *(_times(limit) for limit in limits), "", "", ""]))
    for name, known in CONTENDERS.items():
        own = [_cell(results, case, name, ratio, predict) for ratio in RATIOS]
        at = 0.5 if 0.5 in known else next(iter(known))
        share, asked, held = (
            results.count(case, name, at, column) for column in ("flop_share", "launches", "block_peak_mib")
        )
        cells = [_or_dash(share, ".3f"), _or_dash(asked, ".0f"), _or_dash(held, ".0f")]
        lines.append(_line([title_of(known), *own, *cells]))
    asked, held = (results.count(case, BASELINE, 0.0, column) for column in ("launches", "block_peak_mib"))
    lines.append(_line(["unmerged", *["1.00×"] * 3, "1.000", _or_dash(asked, ".0f"), _or_dash(held, ".0f")]))
    return "\n".join(lines)


def _cell(results: Results, case: Case, name: str, ratio: float, predict: Predict | None) -> str:
    own = results.speed_up(case, name, ratio)
    if own is None:
        return "–"
    return _times(own) + (f" ({predict(case, name, ratio):.2f})" if predict else "")


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def guard_table(rows: Sequence[Row]) -> str:
    """What the guard did over sizes and ratios."""
    lines = [_line(["model, size, ratio", "merging everywhere", "guarded", "sites that merge"])]
    lines.append(_line(["---", "---:", "---:", "---:"]))
    for name, own in speed_guard.by_setting(rows).items():
        unmerged = least(own, "unmerged_s")
        sites = f"{own[-1]['merged_sites']} of {own[-1]['sites']}"
        lines.append(
            _line([name, *(_times(unmerged / least(own, each)) for each in ("everywhere_s", "guarded_s")), sites])
        )
    return "\n".join(lines)


def compiled_table(rows: Sequence[Row]) -> str:
    """What inductor leaves to merging."""
    lines = [_line(["model, size, ratio", "blocks", "unmerged, s", "merged, s", "speed-up", "of the eager unmerged"])]
    lines.append(_line(["---", "---", *["---:"] * 4]))
    for own in rows:
        (eager,) = where(rows, model=own["model"], size=own["size"], mode="eager")
        whole = float(eager["unmerged_s"]) / float(own["merged_s"])
        name = Case(own["model"], int(own["size"]), None if own["depth"] == "all" else int(own["depth"])).title
        cells = [f"{float(own[each]):.2f}" for each in ("unmerged_s", "merged_s")]
        lines.append(
            _line([f"{name}, {own['ratio']}", own["mode"], *cells, _times(float(own["speed_up"])), _times(whole)])
        )
    return "\n".join(lines)


def section(results: Results, predict: Predict | None, kept: Sequence[Promise]) -> str:
    """What stands in ``docs/results/speed.md``."""
    machine = results.timed[-1]
    where_run = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, float32, {machine['date']}"
    parts = [
        f"Measured on: {where_run}. Weights are random, and the process keeps the memory it frees "
        "(`tomadiff.utils.memory`). A time is the mean step of a window of ten, the best of one to three rounds. "
        "Speed-ups are over the unmerged model's best. No block is skipped and the guard is off. Those in brackets "
        f"are predicted by `tomadiff.cost`, fitted on {FITTED.title} alone. The limit is that of FLOPs. Merging can "
        "beat it where convolutions run faster than matrix products."
    ]
    parts += [table(results, case, predict) for case in results.cases]
    parts += ["![Speed-up over ratio](../images/speed_ratio.png)", "![Speed-up over size](../images/speed_size.png)"]
    if results.guarded:
        parts += ["With and without the guard, the paper's settings:", guard_table(results.guarded)]
    if results.compiled:
        parts += ["Blocks compiled one by one by inductor, the paper's settings:", compiled_table(results.compiled)]
    parts.append("\n".join(f"- {promise}" for promise in kept))
    return "\n\n".join(parts)


def over_ratio(results: Results) -> Image.Image:
    """Measured speed-ups, a chart for every case."""
    charts = []
    for case in results.cases:
        lines = [
            _line_of(title_of(CONTENDERS[name]), place, [(0, 1.0), *_points(results, case, name)])
            for place, name in enumerate(SHOWN)
        ]
        limits = [(100 * ratio, limit) for ratio in RATIOS if (limit := results.limit(case, ratio))]
        lines.append(Line("limit: FLOPs alone", ((0, 1.0), *limits), COLOURS[-1], dashed=True))
        title, note = _plain_title(case.title), "times as fast as unmerged"
        charts.append(line_chart(title, note, "tokens merged away, %", lines, (820, 520), percent=False))
    return sheet([charts[start : start + 2] for start in range(0, len(charts), 2)])


def _plain_title(title: str) -> str:
    """The charts' font has no ²."""
    return title.replace("²", " px")


def _points(results: Results, case: Case, name: str) -> Iterator[tuple[float, float]]:
    for ratio in RATIOS:
        own = results.speed_up(case, name, ratio)
        if own is not None:
            yield 100 * ratio, own


def _line_of(name: str, place: int, points: Sequence[tuple[float, float]]) -> Line:
    return Line(name, tuple(points), COLOURS[place % len(COLOURS)], dots=frozenset(x for x, _ in points))


def over_size(results: Results, predict: Predict) -> Image.Image:
    """SDXL from 256² to 2048²: timed where that is affordable, predicted everywhere."""
    lines = []
    for place, ratio in enumerate(RATIOS):
        timed = [(case.size, own) for case in SIZES if (own := _timed_at(results, case, ratio))]
        lines.append(_line_of(f"{ratio:g}, timed", place, timed))
        expected = tuple((case.size, predict(case, "toma-paper", ratio)) for case in SIZES)
        lines.append(Line(f"{ratio:g}, predicted", expected, COLOURS[place], dashed=True))
    note = "ToMA in tiles, times as fast as unmerged, by ratio"
    return line_chart("SDXL over the size of the image", note, "pixels per side", lines, (820, 520), percent=False)


def _timed_at(results: Results, case: Case, ratio: float) -> float | None:
    own = where(results.guarded, **case.columns, ratio=f"{ratio:g}")
    if own:
        return least(own, "unmerged_s") / least(own, "everywhere_s")
    return results.speed_up(case, "toma-paper", ratio)


def main(given: Sequence[str] | None = None) -> int:
    """Read, predict, write, check; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description="Tables, curves and promises from what was timed.")
    parser.add_argument("--results", type=Path, default=speed.RESULTS.parent, help="folder of the CSV files")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--images", type=Path, default=IMAGES)
    wanted = parser.parse_args(given)
    results = Results.read(wanted.results)
    if not results.timed:
        raise SystemExit(
            f"There is nothing in {wanted.results / speed.RESULTS.name}; run python -m benchmarks.speed first."
        )
    machine = fitted_machine(results, wanted.results)
    predict = None if machine is None else predictor(machine)
    predicted = [] if predict is None else predictions(results, predict)
    path = wanted.results / PREDICTED.name
    path.unlink(missing_ok=True)
    for row in predicted:
        append(path, row)
    kept = promises(results, predicted)
    wanted.images.mkdir(parents=True, exist_ok=True)
    over_ratio(results).save(wanted.images / "speed_ratio.png", optimize=True)
    if predict is not None:
        over_size(results, predict).save(wanted.images / "speed_size.png", optimize=True)
    put_in_section(wanted.page, "Speed", section(results, predict, kept), BEGIN, END)
    print("\n".join([*map(str, kept), *speed_guard.broken(results.guarded)]))
    return int(not all(promise.kept for promise in kept) or bool(speed_guard.broken(results.guarded)))


if __name__ == "__main__":
    raise SystemExit(main())
