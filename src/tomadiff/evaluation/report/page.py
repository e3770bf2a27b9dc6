"""The page of a report: one file, nothing loaded from anywhere, readable in light and dark and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tomadiff.evaluation.metrics.distances import metric
from tomadiff.evaluation.metrics.samples import PairKey, grouped
from tomadiff.evaluation.metrics.statistics import Interval
from tomadiff.evaluation.metrics.table import Row
from tomadiff.evaluation.report.markup import Markup, data_uri, joined, tag
from tomadiff.evaluation.report.page_parts import document, facts, figure, folded, table_of
from tomadiff.evaluation.report.report import (
    HEADINGS,
    Figure,
    LoadedRun,
    cells,
    columns,
    heading,
    label_of,
    number,
    title_of,
)
from tomadiff.evaluation.report.trade_off import trade_off
from tomadiff.evaluation.runs.record import Sample
from tomadiff.evaluation.runs.variants import RECOMMENDED

CURVES = ("psnr", "ssim", "lpips", "clip_t", "judge_t", "dino", "fid")  # in order of preference
MOST_CURVES = 2
MOST_CARDS = 6


def page(
    runs: Sequence[LoadedRun],
    title: str,
    images: int = 12,
    figures: Sequence[Figure] = (),
    side: int = 512,
    remarks: Sequence[str] = (),
) -> str:
    """The whole file.

    Args:
        runs: what to show.
        title: of the page.
        images: at most this many prompts of each run are shown.
        figures: more images, shown after those of the runs.
        side: images are at most this many pixels wide and high.
        remarks: what to know about the first numbers, below them.
    """
    parts = [
        _header(runs, title, remarks),
        [_images(loaded, images, side, len(runs) > 1, place) for place, loaded in enumerate(runs)],
        [figure(shown) for shown in figures],
        _curves(runs),
        _tables(runs),
        _difference(runs) if len(runs) > 1 else None,
        [facts(f"How {loaded.name} was made", {**loaded.run.environment, **loaded.run.config}) for loaded in runs],
    ]
    return document(title, parts, script="report.js")


# ---------------------------------------------------------------------------------------------- top
def _header(runs: Sequence[LoadedRun], title: str, remarks: Sequence[str]) -> Markup:
    leads = [tag("p", _lead(loaded), class_="lead soft") for loaded in runs]
    return tag("header", tag("h1", title), leads, _cards(runs[0]), [tag("p", text, class_="soft") for text in remarks])


def _lead(loaded: LoadedRun) -> str:
    config, environment = loaded.run.config, loaded.run.environment
    count = sum(row.count for row in loaded.results.rows)
    known = [
        config.get("model"),
        config.get("pipeline"),
        f"{count} images",
        environment.get("cpu") or environment.get("device"),
    ]
    return f"{loaded.name}: " + " · ".join(str(part) for part in known if part)


def _cards(loaded: LoadedRun) -> Markup:
    """The first methods and ratios at a glance."""
    about = "× says how many times as fast as in full; the metrics say how near the images are to the full ones."
    shown = [_card(loaded, row) for row in loaded.merged[:MOST_CARDS]]
    return joined([tag("div", shown, class_="cards"), tag("p", about, class_="soft") if loaded.speed_ups else None])


def _card(loaded: LoadedRun, row: Row) -> Markup:
    fast = loaded.speed_ups.get((row.method, row.ratio))
    big = f"{fast.value:.2f}×" if fast else f"{row.seconds:.3g} s"
    quality = ", ".join(_said(name, row.metrics[name]) for name in row.metrics if name != "mse")
    words = label_of(row.method, row.ratio) + (" merged" if row.ratio else "")
    return tag("div", tag("b", big), tag("span", words), tag("br"), tag("span", quality), class_="card")


def _said(name: str, interval: Interval) -> str:
    """A metric in words that stay together, with its unit where one expects it: PSNR 40.7 dB."""
    title, _, unit = metric(name).title.partition(" ")
    words = title, number(interval, metric(name).digits)[0], unit
    return "\N{NO-BREAK SPACE}".join(filter(None, words))


# ---------------------------------------------------------------------------------------------- images
def _images(loaded: LoadedRun, limit: int, side: int, named: bool, place: int) -> Markup:
    pairs = _by_pair(loaded)
    shown = list(islice(pairs.values(), limit))
    boxes = [_compare(loaded, samples, side, f"{place}-{n}") for n, samples in enumerate(shown)]
    more = "" if len(shown) == len(pairs) else f" {len(shown)} of {len(pairs)} prompts and seeds are shown."
    words = (
        "Drag across an image, or use the arrow keys: in full on the left, what is chosen below on the right." + more
    )
    name = f"Images of {loaded.name}" if named else "Images"
    return tag("section", tag("h2", name), tag("p", words, class_="soft"), tag("div", boxes, class_="pairs"))


def _by_pair(loaded: LoadedRun) -> dict[PairKey, list[Sample]]:
    """For every prompt and seed that was generated in full, that image and then those of the methods."""
    groups = grouped(loaded.run)
    order = [(row.method, row.ratio) for row in loaded.results.rows if (row.method, row.ratio) in groups]
    if loaded.full is None:
        return {}
    pairs = groups[loaded.full.method, loaded.full.ratio]
    found = {pair_key: [groups[group][pair_key] for group in order if pair_key in groups[group]] for pair_key in pairs}
    return {pair_key: samples for pair_key, samples in found.items() if len(samples) > 1}


def _compare(loaded: LoadedRun, samples: list[Sample], side: int, name: str) -> Markup:
    first, *others = samples
    recommended = (sample for sample in others if sample.method == RECOMMENDED)
    middle = next(recommended, min(others, key=lambda sample: abs(sample.ratio - 0.5)))
    width, height = loaded.run.image(first.key).size
    reference = tag("figure", _image(loaded, first, side), tag("b", "in full"), f"{first.seconds:.2f} s", class_="full")
    choices = [_choice(loaded, sample, side, name, sample is middle) for sample in others]
    strip = tag("fieldset", tag("legend", "Compare with"), reference, choices, class_="strip")
    text = tag("h3", first.prompt, " ", tag("small", f"seed {first.seed}"))
    shape = f"--shape: {width} / {height}"
    return tag("article", text, _stage(first.prompt), strip, class_="pair", data_compare=True, style=shape)


def _stage(prompt: str) -> Markup:
    """Filled by the script; without one the strip below shows all images by itself."""
    return tag(
        "div",
        tag("img", class_="after", alt=""),
        tag("img", class_="before", alt=""),
        tag("span", class_="edge"),
        tag("span", "in full", class_="name left"),
        tag("span", class_="name right chosen"),
        tag("input", type="range", min=0, max=100, value=50, aria_label=f"Share of the full image shown: {prompt}"),
        class_="stage",
        hidden=True,
    )


def _choice(loaded: LoadedRun, sample: Sample, side: int, name: str, checked: bool) -> Markup:
    """An image to choose, with its seconds: those of one image say too little for a speed-up."""
    title = label_of(sample.method, sample.ratio)
    radio = tag("input", type="radio", name=f"pick-{name}", checked=checked, data_title=title, aria_label=title)
    words = tag("b", title), f"{sample.seconds:.2f} s"
    return tag("label", radio, _image(loaded, sample, side), words, title=title)


def _image(loaded: LoadedRun, sample: Sample, side: int) -> Markup:
    words = f"{sample.prompt}, {label_of(sample.method, sample.ratio)}"
    return tag("img", src=data_uri(loaded.run.image(sample.key), side), alt=words)


# ---------------------------------------------------------------------------------------------- curves
def _curves(runs: Sequence[LoadedRun]) -> Markup | None:
    present = [name for name in CURVES if name in columns(runs)][:MOST_CURVES]
    charts = trade_off(runs, present)
    if charts is None:
        return None
    words = "Bars show 95 % confidence intervals of the mean, where there are several images."
    return tag("section", tag("h2", "Trade-off"), tag("p", words, class_="soft"), charts)


# ---------------------------------------------------------------------------------------------- tables
def _tables(runs: Sequence[LoadedRun]) -> Markup:
    names = columns(runs)
    body = [(_table(loaded, names), [tag("p", note, class_="soft") for note in loaded.notes]) for loaded in runs]
    about = tag("dl", [(tag("dt", metric(name).title), tag("dd", metric(name).about)) for name in names])
    meaning = folded("What the columns mean", about) if names else None
    return tag("section", tag("h2", "Numbers"), body, meaning)


def _table(loaded: LoadedRun, names: Sequence[str]) -> Markup:
    rows = []
    for row in loaded.results.rows:
        own = [
            tag("td", value, tag("small", spread) if spread else None) for value, spread in cells(loaded, row, names)
        ]
        lead = tag("th", title_of(row.method), scope="row"), tag("td", f"{row.ratio:.0%}"), tag("td", row.count)
        rows.append(tag("tr", lead, own))
    return table_of(loaded.name, [*HEADINGS, *map(heading, names)], rows)


def _difference(runs: Sequence[LoadedRun]) -> Markup:
    """What later runs have more or less of than the first, where both generated the same."""
    first, names = runs[0], columns(runs)
    before = {(row.method, row.ratio): row for row in first.results.rows}
    tables = []
    for loaded in runs[1:]:
        both = [(before[row.method, row.ratio], row) for row in loaded.merged if (row.method, row.ratio) in before]
        rows = [tag("tr", _changes(old, new, names)) for old, new in both]
        shown = ["method", "merged", "seconds", *map(heading, names)]
        tables.append(table_of(f"{loaded.name} less {first.name}", shown, rows) if rows else None)
    return tag("section", tag("h2", "Difference"), tables)


def _changes(old: Row, new: Row, names: Sequence[str]) -> list[Markup]:
    lead = [tag("th", title_of(new.method), scope="row"), tag("td", f"{new.ratio:.0%}")]
    lead.append(_change(new.seconds - old.seconds, "lower", 3))
    for name in names:
        both = old.metrics.get(name), new.metrics.get(name)
        known = None if None in both else both[1].value - both[0].value  # type: ignore[union-attr]
        lead.append(_change(known, metric(name).better, metric(name).digits))
    return lead


def _change(value: float | None, better: str, digits: int) -> Markup:
    if value is None:
        return tag("td", "–")
    kind = None if round(value, digits) == 0 else "good" if (value > 0) == (better == "higher") else "bad"
    return tag("td", f"{value:+.{digits}f}", class_=kind)
