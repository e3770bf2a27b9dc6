"""The report: what it says, that it needs nobody, and that no prompt can become markup."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from tests.evaluation.synthetic_runs import NASTY, painted_run
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.report.curves import Axis, Point, Series, chart
from tomadiff.evaluation.report.markup import Markup, data_uri, tag
from tomadiff.evaluation.report.page import page
from tomadiff.evaluation.report.report import load_runs, markdown
from tomadiff.evaluation.runs.record import Run, RunError, Sample

KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "header",
        "h1",
        "h2",
        "h3",
        "p",
        "div",
        "span",
        "br",
    ),
    *(
        "section",
        "article",
        "figure",
        "figcaption",
        "fieldset",
        "legend",
        "label",
        "input",
        "img",
        "b",
        "small",
    ),
    *(
        "svg",
        "g",
        "line",
        "text",
        "polyline",
        "polygon",
        "circle",
        "ul",
        "li",
        "footer",
        "script",
    ),
    *(
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "dl",
        "dt",
        "dd",
    ),
}


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == name]


def test_markup_escapes_everything_but_markup() -> None:
    assert tag(
        "p",
        "1 < 2",
        Markup("<b>x</b>"),
        ["&", None],
        class_="a",
        title='"',
        hidden=True,
        id=None,
    ) == ('<p class="a" title="&quot;" hidden>1 &lt; 2<b>x</b>&amp;</p>')
    assert tag("img", alt="<") == '<img alt="&lt;">'


def test_large_images_shrink_and_small_ones_stay_exact() -> None:
    assert data_uri(Image.new("RGB", (64, 64))).startswith("data:image/png;base64,")
    large = data_uri(Image.effect_noise((1000, 500), 80), side=256)
    assert large.startswith(("data:image/webp", "data:image/jpeg"))
    assert len(large) < 100_000


def test_axis_ticks_are_round_and_inside() -> None:
    assert Axis("", 0.1, 0.9, 0, 1).ticks == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert all(0.013 <= info <= 0.019 for info in Axis("", 0.013, 0.019, 0, 1).ticks)


def test_a_chart_of_a_single_point_is_generated() -> None:
    generated = chart("t", "x", "y", [Series("one", (Point(1, 5, 5, 5, "only <one>"),))])
    assert "nan" not in generated
    assert "only &lt;one&gt;" in generated


def test_the_page_needs_nobody(tmp_path: Path) -> None:
    text = page(load_runs([painted_run(tmp_path / "run").folder]), "Title")
    elements = Elements(text)
    sources = [image.get("src") for image in elements.named("img")]
    assert sum(bool(source) for source in sources) == 2 * 4
    assert all(source is None or source.startswith("data:") for source in sources)
    assert [own["href"] for _, own in elements.found if "href" in own] == ["data:,"]
    assert "url(" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_a_prompt_cannot_become_markup(tmp_path: Path) -> None:
    run = painted_run(tmp_path / "<b>run", prompts=[NASTY])
    elements = Elements(page(load_runs([run.folder]), NASTY))
    assert len(elements.named("script")) == 1
    assert not any("onerror" in attributes for _, attributes in elements.found)
    assert {tag for tag, _ in elements.found} <= KNOWN


def test_sliders_and_choices_have_names(tmp_path: Path) -> None:
    elements = Elements(page(load_runs([painted_run(tmp_path / "run").folder]), "Title"))
    ranges = [own for own in elements.named("input") if own["type"] == "range"]
    assert len(ranges) == 2
    assert all(own["aria-label"] for own in elements.named("input"))
    assert all(own.get("alt") is not None for own in elements.named("img"))


def test_only_so_many_images_are_shown(tmp_path: Path) -> None:
    run = painted_run(tmp_path / "run", prompts=["one", "two", "three"])
    text = page(load_runs([run.folder]), "Title", images=1)
    assert text.count("data:image") == 4
    assert "1 of 3 prompts" in text


def test_a_run_that_was_not_measured_gets_pixels(tmp_path: Path) -> None:
    (told,) = load_runs([painted_run(tmp_path / "run").folder])
    assert "not measured" in told.notes[0]
    psnr = [row.metrics["psnr"].value for row in told.merged]
    assert psnr == sorted(psnr, reverse=True)
    assert told.speed_ups["toma", 0.5].value == pytest.approx(2 / 1.5)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_measured_run_is_told_as_it_was_measured(tmp_path: Path) -> None:
    run = painted_run(tmp_path / "run")
    results = measure(run, networks={})
    (told,) = load_runs([run.folder])
    assert told.results == results
    run.add(Sample("full", 0, "new", 0, 1.0), run.image(next(iter(run.samples()))))
    (stale,) = load_runs([run.folder])
    assert "added since" in stale.notes[0]


def test_runs_are_compared(tmp_path: Path) -> None:
    first, second = (
        painted_run(tmp_path / "a" / "run"),
        painted_run(tmp_path / "b" / "run", methods=("toma", "tomesd")),
    )
    told = load_runs([first.folder, second.folder])
    assert [one.name for one in told] == ["run (1)", "run (2)"]
    text = page(told, "Title")
    assert "run (2) less run (1)" in text
    assert "ToMeSD" in text


def test_markdown_is_a_table_that_names_cannot_break(tmp_path: Path) -> None:
    text = markdown(load_runs([painted_run(tmp_path / "a|<b>").folder]))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    assert "1.33×" in text
    assert "<b>" not in text


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        load_runs([tmp_path])
    Run.begin(tmp_path / "empty", {}, {})
    with pytest.raises(RunError, match="no finished image"):
        load_runs([tmp_path / "empty"])


def test_a_run_without_full_images_still_has_numbers(tmp_path: Path) -> None:
    run = Run.begin(tmp_path / "run", {}, {})
    run.add(Sample("toma", 0.5, "a fox", 0, 1.0), Image.new("RGB", (32, 32)))
    text = page(load_runs([run.folder]), "Title")
    assert "ToMA, 50% merged" in text
