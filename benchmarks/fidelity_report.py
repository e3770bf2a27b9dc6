"""Tables of what was generated; ``python -m benchmarks.fidelity_report``.

Reads the results of :mod:`benchmarks.fidelity` and writes a section of ``docs/results/fidelity.md``. Nothing is
generated here; what was not generated yet is named.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from benchmarks import front_report
from benchmarks.candidates import DEFAULT, FEW_STEPS, LADDERS, RATIOS, SETS, STARTS, TUNING, WINDOW_RATIOS, default_at
from benchmarks.fidelity import RESULTS, RUNS
from benchmarks.fidelity_results import (
    MEASURES,
    Demand,
    Measured,
    Results,
    demands,
    is_alone,
    kind_of_cache,
    share,
    told,
)
from benchmarks.flops import put_in_section
from benchmarks.rows import where
from tomadiff.evaluation.metrics.statistics import Interval
from tomadiff.evaluation.runs.rows import read

ROOT = Path(__file__).parents[1]
PAGE, IMAGES = ROOT / "docs" / "results" / "fidelity.md", ROOT / "docs" / "images"
BEGIN, END = "<!-- fidelity: written by python -m benchmarks.fidelity_report -->", "<!-- fidelity: end -->"
MODELS = ("emoji-sdxl", "emoji-sdxl-4step", "emoji-flux")
DIGITS = {"psnr": 1, "ssim": 3, "judge": 4}
MEANS = tuple(DIGITS)  # in every table of settings
HOW = """The small trained pipelines that ship with the package generate the same prompts and seeds without merging and
with every setting. These are small models of emoji. They tell settings apart, and do not say how many dB SDXL or
Flux.1 would lose.

- **Distances** are to the unmerged image: PSNR, SSIM and judge distance. Judge distance is 1 − cosine of emoji-judge's
  image features.
- **FLOPs** are a share of the unmerged image's. They are counted for a whole image, with planning, text encoders and
  decoder. FirstBlockCache costs what the image asks for, so its share is the mean of eight images.
- **Intervals** in brackets are 95 % confidence intervals of means, bootstrapped over prompts.
- **Ratios of errors** are ratios of means over the same prompts and seeds, with paired intervals.
- **Verdicts**: "held" means that the whole interval is within the bound, "within the interval" that the mean is.
  `toma 0.31/0.25` merges .31, and .25 at the finest level, as `apply(pipe, flops=…)` would. Settings that are not
  generated yet cannot be chosen. The default then has a higher ratio, and may cost far less than its rival.
- **Reuse** of ops added again what layers gave last. It is no longer in the package; [forecasts](forecast.md) took its
  place.
- **The guard is off.** Every setting merges wherever it says. On models as small as these, `tomadiff.apply` would leave
  some tokens unmerged.

`python -m benchmarks.fidelity` generates the images, `make results` writes this page."""
CAPTION = """*The first prompts of the list as {0} generates them from seed 0, with their PSNR against the unmerged
image. ToMA has the default settings. "Paper" has the paper's, and "random" chooses destinations at random. ToMeSD and
ToFu merge at every op and level here, as ToMA does, and plan anew in every block and step. ToDo merges keys and values
only. Made by* `python -m benchmarks.fidelity_images {0}`."""
TITLES = {
    "toma": "ToMA",
    "toma-paper": "ToMA as in the paper",
    "toma-paper, 10/5": "… plans kept 10 and 5 steps",
    "toma-paper, scaled": "… scaled to the number of steps",
    "toma-paper, random destinations": "… random destinations",
    "toma-paper, strided destinations": "… strided destinations",
    "toma-paper, kmeans destinations": "… k-means destinations",
    "tomesd": "ToMeSD",
    "tomesd-all": "ToMeSD, every op and level",
    "tofu": "ToFu",
    "tofu-all": "ToFu, every op and level",
    "todo": "ToDo",
}


# ---------------------------------------------------------------------------------------------- tables
def compared(results: Results) -> str:
    """Methods and destinations at equal ratio."""
    head = ["", "ratio", "FLOPs", "PSNR, dB", "SSIM", "judge distance", "pairs"]
    found = [
        [TITLES[name], f"{ratio:g}", *_figures(own, MEANS)]
        for ratio in RATIOS
        for name in TITLES
        if (own := results.get(f"{name} {ratio:.2f}"))
    ]
    return _table(head, found)


def knobs(results: Results) -> str:
    """Every setting changed alone, against the paper's settings."""
    base = results.get("toma-paper 0.50")
    head = ["", "FLOPs", "PSNR, dB", "SSIM", "judge distance", "pairs", "MSE, of the paper's", "that is"]
    found = []
    for own in results.measured_of("knobs"):
        ratio = None if base is None or own is base else own.over(base, "mse")
        found.append([own.name, *_figures(own, MEANS), _interval(ratio), told(ratio)])
    return _table(head, found) if len(found) > 1 else ""


def windows(results: Results) -> str:
    """PSNR by ratio and first merged step, with FLOPs."""
    found = []
    for ratio in WINDOW_RATIOS:
        cells = [results.get(default_at(ratio, start).name) for start in STARTS]
        if any(cells):
            shown = ["–" if one is None else f"{one.mean('psnr').value:.1f} dB at {share(one.cost)}" for one in cells]
            found.append([f"{ratio:g}", *shown])
    return _table(["ratio", *(f"from {start:.0%}" for start in STARTS)], found)


def must_hold(found: Sequence[Demand]) -> str:
    """What was asked for, and whether it is so."""
    head = ["at", "toma (FLOPs)", "theirs (FLOPs)", "MSE, of theirs", "judge distance, of theirs", "at most",
            "pairs", "verdict"]  # fmt: skip
    lines = []
    for demand in found:
        ratios = [demand.ratio(measure) for measure in MEASURES]
        sides = ["–" if side is None else side.label for side in (demand.own, demand.rival)]
        pairs = "–" if ratios[0] is None else str(ratios[0].count)
        lines.append([demand.text, *sides, *map(_interval, ratios), f"{demand.most:g}", pairs, demand.verdict])
    return _table(head, lines)


def caches(results: Results) -> str:
    """Caches against merging at no more FLOPs than theirs; pairs against either alone at no fewer."""
    head = ["", "FLOPs", "PSNR, dB", "SSIM", "judge distance", "pairs", "MSE, of merging alone",
            "MSE, of the cache alone"]  # fmt: skip
    found = []
    for own in results.measured_of("caches"):
        if is_alone(own.name):
            rivals = (results.within(own.cost), None)
        else:
            rivals = (results.cheapest(results.names_of("matched"), own.cost), _alone_like(results, own))
        found.append([own.name, *_figures(own, MEANS), *(_against(own, rival) for rival in rivals)])
    return _table(head, found)


def _alone_like(results: Results, own: Measured) -> Measured | None:
    """The same cache without merging, at no fewer FLOPs."""
    names = (name for name in results.names_of("caches") if is_alone(name))
    kind = kind_of_cache(own.name)
    return results.cheapest([name for name in names if kind_of_cache(name) == kind], own.cost)


def _against(own: Measured, rival: Measured | None) -> str:
    if rival is None:
        return "–"
    ratio = own.over(rival, "mse")
    return f"{_interval(ratio)}: {told(ratio)} (at {share(rival.cost)})"


def _figures(own: Measured, measures: Sequence[str]) -> list[str]:
    """FLOPs, means and the number of images."""
    means = (_interval(own.mean(measure), DIGITS[measure]) for measure in measures)
    return [share(own.cost), *means, str(len(own.images))]


def _interval(one: Interval | None, digits: int = 2) -> str:
    if one is None:
        return "–"
    if math.isinf(one.value):
        return "equal images"
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


# ---------------------------------------------------------------------------------------------- what is there
def missing(results: Results) -> str:
    """Sets of which something was not generated, with how much of it is there."""
    wanted = [name for name in SETS if name not in (*LADDERS, *TUNING)] if results.steps >= FEW_STEPS else ["paper"]
    parts = []
    for name in wanted:
        names = set(results.names_of(name))
        there = sum(one in results.measured for one in names)
        if there < len(names):
            parts.append(f"`{name}` ({there} of {len(names)} settings)")
    if not any(default_at(ratio).name in results.measured for ratio in RATIOS):
        parts.append(f"`{DEFAULT}`")
    left_out = f" {results.outdated} images of settings that changed since are left out." if results.outdated else ""
    return (f"Not generated yet: {'. '.join(parts)}." if parts else "") + left_out


def conditions(folder: Path, results: Results) -> str:
    """What was generated with."""
    runs = where(read(folder / RUNS), model=results.model, steps=results.steps)
    parts = [("size", "{}² pixels"), ("dtype", "{}"), ("torch", "torch {}"), ("diffusers", "diffusers {}"),
             ("tomadiff", "tomadiff {}"), ("cpu", "{}"), ("date", "{}")]  # fmt: skip
    told = [form.format(" and ".join(dict.fromkeys(run[name] for run in runs))) for name, form in parts if runs]
    counts = [len(own.images) for own in results.measured.values()]
    counted = " to ".join(map(str, sorted({min(counts, default=0), max(counts, default=0)})))
    pairs = f"{counted} pairs of prompt and seed per setting"
    return ", ".join([f"{results.model}, {results.steps} steps", *told, pairs]) + "."


def part(folder: Path, results: Results) -> Iterator[str]:
    """All about one model and number of steps."""
    yield f"## {results.model}, {results.steps} steps"
    yield conditions(folder, results)
    yield missing(results)
    tables = {
        "Methods and destinations at equal ratio:": compared(results),
        "The default against the paper's settings and the baselines, at no more FLOPs than theirs:": must_hold(
            list(demands(results))
        ),
        "A cache alone is compared with merging alone that costs no more. Both together are compared with either "
        "alone that costs no less:": caches(results),
        **{title: _table(*table) for title, table in front_report.tables(results).items()},
    }
    for title, table in tables.items():
        if table:
            yield f"{title}\n\n{table}"


def tuned(folder: Path, results: Results) -> Iterator[str]:
    """All about the settings of one model and number of steps, by the images that they were chosen by."""
    tables = {
        f"Each setting changed alone, at ratio .5, {results.steps} steps:": knobs(results),
        f"The default by ratio and share of the run that stays unmerged, {results.steps} steps:": windows(results),
    }
    if not any(tables.values()):
        return
    yield f"## {results.model}, tuning pairs"
    yield "Settings were chosen by these pairs. None of them is in the tables above."
    yield conditions(folder, results)
    for title, table in tables.items():
        if table:
            yield f"{title}\n\n{table}"


def section(folder: Path, models: Sequence[str] = MODELS) -> str:
    """What stands in ``docs/results/fidelity.md``."""
    parts = [HOW]
    for model in models:
        found = Results.read(folder, model)
        if not found:
            parts.append(f"{model}: nothing generated yet (`python -m benchmarks.fidelity {model} …`).")
        parts += filter(None, chain.from_iterable(part(folder, results) for results in found))
        tuning = Results.read(folder, model, tuning=True)
        parts += chain.from_iterable(tuned(folder, results) for results in tuning)
        image = IMAGES / f"fidelity-{model}.png"
        if image.exists():
            parts += [f"![Images of {model} by method and ratio](../images/{image.name})", CAPTION.format(model)]
    return "\n\n".join(parts)


def main(given: Sequence[str] | None = None) -> None:
    """Read and write, and print what must hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    parser.add_argument("--page", type=Path, default=PAGE)
    wanted = parser.parse_args(given)
    put_in_section(wanted.page, "Images", section(wanted.results), BEGIN, END)
    for results in chain.from_iterable(Results.read(wanted.results, model) for model in MODELS):
        for demand in demands(results):
            print(f"{results.model}, {results.steps} steps, {demand.text}: {demand.verdict}")


if __name__ == "__main__":
    main()
