"""What ``tomadiff demo`` writes, in a real browser, as people see it."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.browser.chromium import Opened, brightness, browser
from tomadiff import embedded
from tomadiff.cli.main import app

__all__ = ["browser"]  # a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("emoji-sdxl" not in embedded.available(), reason="emoji-sdxl is not trained yet"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's own folder, with one prompt."""
    made = tmp_path_factory.mktemp("demo")
    asked = ["demo", "--out", str(made), "--prompt", "a fox on a blue background"]
    result = CliRunner().invoke(app, asked, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    (made / "told.txt").write_text(result.output, encoding="utf-8")
    return made


def speed_ups(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(\d+\.\d+)×", text)]


def test_it_opens_quietly_and_all_images_load(browser: Any, folder: Path) -> None:
    with Opened(browser, (folder / "index.html").as_uri()) as opened:
        widths = opened.page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
        assert len(widths) >= 2 + 6 + 2, "a slider, six ways, a grid and a map"
        assert all(width > 0 for width in widths)
        assert all(url.startswith(("file:", "data:")) for url in opened.requests)
        assert opened.errors == []


def test_what_we_recommend_comes_first(browser: Any, folder: Path) -> None:
    with Opened(browser, (folder / "index.html").as_uri()) as opened:
        card = opened.page.locator(".card").first.inner_text()
        assert "apply(pipe)" in card
        assert re.search(r"PSNR\s\d+\.\d dB,\sSSIM\s0\.\d+", card.replace("\N{NO-BREAK SPACE}", " "))
        assert opened.page.locator(".stage .chosen").first.inner_text() == "apply(pipe)"
        ways = opened.page.locator(".strip").first.locator("b").all_inner_texts()
        assert ways == ["in full", "apply(pipe)", "speedup=2.5", "ToMA, 25%", "ToMA, 50%", "ToMA, 75%"]


def test_what_is_slower_says_why(browser: Any, folder: Path) -> None:
    """Wherever a speed-up is below 1, on the page or on the terminal, a sentence names its way and the reason."""
    with Opened(browser, (folder / "index.html").as_uri()) as opened:
        cards = [card.inner_text().splitlines() for card in opened.page.locator(".card").all()]
        remarks = opened.page.locator("header").inner_text().splitlines()
        caption = opened.page.locator("figcaption").first.inner_text()
    told = (folder / "told.txt").read_text(encoding="utf-8")
    assert len(cards) == 5
    for lines in cards:
        (gain,), name = speed_ups(lines[0]), lines[1].removesuffix(" merged")
        reasons = [line for line in remarks if line.startswith("Slower than in full:")]
        assert (gain < 1) == any(name in line.partition(". ")[0] for line in reasons), f"{name}: {gain}"
    assert ("Slower than in full" in told) == ("Slower than in full" in caption)
    assert len(speed_ups(told.partition("in full: ")[0])) == 5


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_or_overlaps(browser: Any, folder: Path, width: int) -> None:
    clipped = """() => [...document.querySelectorAll(".card *, .strip b, .strip label, figcaption p, h1")]
      .filter((part) => part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== "inline")
      .map((part) => part.outerHTML.slice(0, 200))"""
    with Opened(browser, (folder / "index.html").as_uri(), viewport={"width": width, "height": 844}) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.evaluate(clipped) == []


def test_it_can_be_read_in_the_dark_on_a_phone(browser: Any, folder: Path) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with Opened(browser, (folder / "index.html").as_uri(), **phone) as opened:
        for part in (".card b", ".card span", "figcaption p", ".strip b"):
            ink = opened.page.locator(part).first.evaluate("part => getComputedStyle(part).color")
            assert brightness(ink) > 140, part
        paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert brightness(paper) < 60
        assert opened.errors == []


def test_the_grid_opens_by_itself(browser: Any, folder: Path) -> None:
    with Opened(browser, (folder / "grid.png").as_uri()) as opened:
        width, height = opened.page.evaluate("[document.images[0].naturalWidth, document.images[0].naturalHeight]")
        assert width > height > 200
        assert opened.errors == []
