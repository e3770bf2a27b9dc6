"""The report in a real browser: Debian's Chromium, headless."""

from typing import Any

import pytest

from tests.browser.chromium import Opened, brightness, browser
from tests.evaluation.synthetic_runs import NASTY, painted_run
from tomadiff.cli.report import write
from tomadiff.evaluation.report.figures import merge_map, merge_sample
from tomadiff.evaluation.report.report import Figure, load_runs
from tomadiff.evaluation.runs.synthetic_image import synthetic_image
from tomadiff.methods.toma import ToMA

__all__ = ["browser"]  # a fixture


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    first = painted_run(folder / "run", methods=("toma", "tomesd"))
    second = painted_run(folder / "other", prompts=["a lake, " + "very " * 60 + "long"])
    image = synthetic_image(64)
    figure = Figure(
        "What merged",
        merge_map(image, [merge_sample(image, ToMA(0.5), side=16, repeats=1)]),
    )
    write(
        load_runs([first.folder, second.folder]),
        folder / "index.html",
        "Before and after",
        figures=[figure],
    )
    return (folder / "index.html").as_uri()


def cut(page: Any) -> float:
    """Where the edge between the two images is, as a share of the stage."""
    stage, edge = (page.locator(name).first.bounding_box() for name in (".stage", ".stage .edge"))
    return float((edge["x"] + edge["width"] / 2 - stage["x"]) / stage["width"])


def test_it_opens_quietly_and_all_images_load(browser: Any, page_file: str) -> None:
    with Opened(browser, page_file) as opened:
        widths = opened.page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
        assert len(widths) == 2 * (7 + 2) + (4 + 2) + 1
        assert all(width > 0 for width in widths)
        assert all(url.startswith(("file:", "data:")) for url in opened.requests)
        assert opened.errors == []


def test_the_slider_moves_by_mouse_and_by_keyboard(browser: Any, page_file: str) -> None:
    with Opened(browser, page_file) as opened:
        stage = opened.page.locator(".stage").first
        stage.scroll_into_view_if_needed()
        assert cut(opened.page) == pytest.approx(0.5, abs=0.02)
        box = stage.bounding_box()
        opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        opened.page.mouse.down()
        opened.page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2, steps=5)
        opened.page.mouse.up()
        assert cut(opened.page) == pytest.approx(0.2, abs=0.05)
        slider = opened.page.get_by_role("slider").first
        slider.focus()
        before = int(slider.input_value())
        for _ in range(5):
            opened.page.keyboard.press("ArrowRight")
        assert int(slider.input_value()) == before + 5
        opened.page.keyboard.press("End")
        assert cut(opened.page) == pytest.approx(1, abs=0.01)
        assert opened.errors == []


def test_another_ratio_is_chosen_by_mouse_and_by_keyboard(browser: Any, page_file: str) -> None:
    with Opened(browser, page_file) as opened:
        after, chosen = (
            opened.page.locator(".stage .after").first,
            opened.page.locator(".chosen").first,
        )
        first = after.get_attribute("src")
        assert chosen.inner_text() == "ToMA, 50%"
        opened.page.locator(".pair").first.locator("label").nth(5).click()
        assert chosen.inner_text() == "ToMeSD, 75%"
        assert after.get_attribute("src") != first
        opened.page.keyboard.press("ArrowLeft")
        assert chosen.inner_text() == "ToMeSD, 50%"


def test_a_script_in_a_prompt_stays_text(browser: Any, page_file: str) -> None:
    with Opened(browser, page_file) as opened:
        assert opened.page.title() == "Before and after"
        assert opened.page.get_by_text("<script>document.title").count() >= 1
        assert any(NASTY.split()[0] in text for text in opened.page.locator("h3").all_inner_texts())
        assert opened.page.evaluate("document.scripts.length") == 1
        assert opened.errors == []


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_sticks_out_sideways(browser: Any, page_file: str, width: int) -> None:
    with Opened(browser, page_file, viewport={"width": width, "height": 800}) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light_differ_and_both_can_be_read(browser: Any, page_file: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        with Opened(browser, page_file, color_scheme=scheme) as opened:
            style = "getComputedStyle(document.body)"
            paper, ink = (opened.page.evaluate(f"{style}.{name}") for name in ("backgroundColor", "color"))
            seen[scheme] = brightness(paper), brightness(ink)
    assert seen["light"][0] - seen["light"][1] > 150
    assert seen["dark"][1] - seen["dark"][0] > 150


def test_without_scripts_all_images_are_still_there(browser: Any, page_file: str) -> None:
    with Opened(browser, page_file, java_script_enabled=False) as opened:
        assert opened.page.locator(".strip img").first.is_visible()
        assert not opened.page.locator(".stage").first.is_visible()
