"""``tomadiff web`` in a real browser, on the embedded pipeline: all that visitors do, and what they must not break.

``TOMADIFF_SCREENSHOT=docs/images/web.png pytest tests/browser/test_web.py -k screenshot`` makes the screenshot
that is in the README, with all steps; otherwise the same test makes do with few and throws it away.
"""

import io
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.browser.chromium import Opened, brightness, browser
from tests.web.watched import close, resident
from tomadiff import embedded
from tomadiff.engine.model import MARK
from tomadiff.evaluation.runs import models

pytest.importorskip("gradio", reason="gradio is not installed")
if "emoji-sdxl" not in embedded.available():
    pytest.skip("the weights of emoji-sdxl are not trained yet", allow_module_level=True)

from tomadiff.web.page import serve
from tomadiff.web.request import ImageSettings
from tomadiff.web.session import Model, Session

__all__ = ["browser"]  # a fixture

SCREENSHOT = os.environ.get("TOMADIFF_SCREENSHOT")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("emoji-sdxl", models.load("emoji-sdxl", "cpu"))


@pytest.fixture(scope="module")
def session(model: Model) -> Session:
    return Session([model])


@pytest.fixture(scope="module")
def address(session: Session) -> Iterator[str]:
    blocks, address = serve(session)
    yield address
    close(blocks)


class Visit(Opened):
    """The page, and what people do on it."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        super().__init__(browser, address, **settings)
        self.page.locator("#generate").wait_for()
        # Gradio marks its tabs once it has measured them; before that, clicks go nowhere.
        self.page.get_by_role("tab", name="Images", selected=True).first.wait_for()

    def type(self, field: str, value: str) -> None:
        self.page.locator(f"#{field} :is(textarea, input)").first.fill(value)

    def merge(self, method: str = "ToMA") -> None:
        """Choose a method that merges, and wait for its ratio."""
        self.choose("method", method)
        self.page.locator("#ratio").wait_for()

    def frugal(self, steps: int = 2, side: int = 64) -> None:
        """Few steps and a small image."""
        if not self.page.locator("#width").is_visible():
            self.page.get_by_text("Forecast, size, steps and seed").click()
        for field, value in (("width", side), ("height", side), ("steps", steps)):
            self.type(field, str(value))

    def press(self) -> None:
        """Generate, and wait until the images are there."""
        before = self.shown()
        self.page.locator("#generate").click()
        self.changed("#cards dl", before)

    def changed(self, part: str, before: str) -> None:
        """Wait until the text of a part is another."""
        self.page.wait_for_function(
            "([part, before]) => (document.querySelector(part)?.innerText ?? '').trim() !== before", arg=[part, before]
        )

    def text(self, part: str) -> str:
        found = self.page.locator(part)
        return found.inner_text().strip() if found.count() else ""

    def shown(self) -> str:
        return self.text("#cards dl")

    def cards(self) -> dict[str, str]:
        """What each card says, by its title."""
        cards = self.page.locator("#cards .card")
        return {card.locator("dt").inner_text(): card.locator("dd").inner_text() for card in cards.all()}

    def image(self, part: str, number: int = 0) -> np.ndarray:
        """The pixels of an image as the browser gets them."""
        address = self.page.locator(f"{part} img").nth(number).get_attribute("src")
        with Image.open(io.BytesIO(self.context.request.get(address).body())) as held:
            return np.array(held.convert("RGB"))

    def wrong(self, words: str) -> Any:
        """The line that says so, once it is there."""
        line = self.page.get_by_role("alert").filter(has_text=words)
        line.wait_for()
        return line

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).first.click()

    def choose(self, part: str, words: str) -> None:
        """An option of a dropdown, by keyboard alone."""
        field = self.page.locator(f"#{part} input")
        field.focus()
        field.fill(words)
        self.page.get_by_role("option", name=words, exact=True).wait_for()
        self.page.keyboard.press("Enter")


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    with Visit(browser, address, viewport={"width": 1280, "height": 900}) as visit:
        yield visit
        assert visit.errors == []
        assert all(url.startswith((address, "data:", "blob:")) for url in visit.requests)


def unpatched(model: Model) -> np.ndarray:
    """An image of the model as it is, and proof that nothing is left on it."""
    assert MARK not in model.pipe.unet.__dict__
    call = {"height": 64, "width": 64, "num_inference_steps": 2, "output_type": "np"}
    return np.asarray(model.pipe("a fox", generator=torch.Generator().manual_seed(0), **call).images)


def test_type_slide_press_compare_and_look_around(visit: Visit) -> None:
    visit.frugal(steps=3)
    visit.merge()
    visit.type("prompt", "an owl on a red background")
    slider = visit.page.locator("#ratio input[type=range]")
    slider.focus()
    for _ in range(3):
        visit.page.keyboard.press("ArrowRight")
    assert slider.input_value() == "0.65"
    visit.press()
    before, after = visit.image("#pair", 0), visit.image("#pair", 1)
    assert before.shape == after.shape == (64, 64, 3)
    assert not np.array_equal(before, after)
    cards = visit.cards()
    assert set(cards) >= {"in full", "merged", "speed-up", "PSNR dB", "SSIM"}
    assert float(cards["PSNR dB"]) < 100
    assert cards["speed-up"].endswith("×")

    # The merge map: another view, block and step.
    assert re.match(r"block 0, step 3: \d+ of 256 tokens \(16 × 16\) stay, coverage 0\.\d+", visit.text("#note p"))
    shown = visit.image("#map")
    source = visit.page.locator("#map img").get_attribute("src")  # before the click: it may take effect at once
    visit.page.locator("#view").get_by_text("Clusters").click()
    visit.page.wait_for_function("old => document.querySelector('#map img').getAttribute('src') !== old", arg=source)
    assert not np.array_equal(visit.image("#map"), shown)
    note = visit.text("#note p")
    visit.choose("where", "block 4 (8 × 8)")
    visit.changed("#note p", note)
    assert "block 4, step 3" in visit.text("#note p")
    note = visit.text("#note p")
    visit.page.locator("#step input[type=range]").focus()
    visit.page.keyboard.press("ArrowLeft")
    visit.changed("#note p", note)
    assert "block 4, step 2" in visit.text("#note p")

    # A smaller ratio: the full image is cached, the merged one is nearer to it.
    visit.page.locator("#ratio input[type=number]").fill("0.2")
    visit.page.locator("#ratio input[type=number]").blur()
    visit.press()
    assert np.array_equal(visit.image("#pair", 0), before)
    assert "in full, cached" in visit.cards()
    assert "speed-up" not in visit.cards(), "a time that was kept is compared with nothing"
    assert float(visit.cards()["PSNR dB"]) > float(cards["PSNR dB"])

    visit.tab("Python")
    code = visit.page.locator("#code .cm-content")
    code.wait_for()
    assert '"an owl on a red background"' in code.inner_text()
    assert "tomadiff.ToMA(ratio=0.2)" in code.inner_text()
    assert "256 → " in visit.text("#summary")

    visit.tab("Trade-off")
    visit.page.locator("#generate-curve").click()
    visit.page.wait_for_function("document.querySelectorAll('#curve figure').length === 5")
    assert visit.page.locator("#curve svg.chart").count() == 4
    shares = visit.page.locator("#curve tbody th").all_inner_texts()
    assert shares == ["0%", "20%", "25%", "50%", "75%"]


def test_what_we_recommend_comes_first(visit: Visit) -> None:
    """One press, and nothing to choose: the page says which steps were computed, and shows no map of merging."""
    assert visit.page.locator("#method input").input_value().startswith("Recommended")
    assert not visit.page.locator("#ratio").is_visible()
    visit.frugal(steps=10)
    assert not visit.page.locator("#forecast").is_visible()
    visit.press()
    assert {"in full", "forecast", "speed-up", "PSNR dB"} <= set(visit.cards())
    assert re.match(r"Recommended for 10 steps: .* of 10 steps computed", visit.text("#computed p:first-of-type"))
    assert visit.page.locator("#computed .steps span").count() == 10
    assert not visit.page.locator("#map").is_visible()
    visit.tab("Python")
    code = visit.page.locator("#code .cm-content")
    code.wait_for()
    assert "patch = tomadiff.apply(pipe)\n" in code.inner_text()


@pytest.mark.slow
def test_nothing_merged_is_the_same_image(visit: Visit) -> None:
    visit.frugal()
    visit.merge()
    visit.page.locator("#ratio input[type=number]").fill("0")
    visit.page.locator("#ratio input[type=number]").blur()
    visit.press()
    assert np.array_equal(visit.image("#pair", 0), visit.image("#pair", 1))
    assert visit.cards()["PSNR dB"] == "equal"
    assert "speed-up" not in visit.cards(), "nothing was done differently"
    assert not visit.page.locator("#map").is_visible()


@pytest.mark.slow
def test_a_wrong_value_is_said_next_to_its_field_and_generates_nothing(visit: Visit) -> None:
    visit.frugal()
    visit.type("width", "130")
    line = visit.wrong("130 × 64 is not possible; give sides from 64 to 256 pixels that 8 divides.")
    field, below = visit.page.locator("#width").bounding_box(), line.bounding_box()
    assert 0 < below["y"] - field["y"] < 2 * field["height"]
    visit.type("prompt", "")
    visit.page.locator("#generate").click()
    visit.wrong("The prompt is empty; say what to generate.")
    assert visit.page.locator("#pair img").count() == 0
    visit.type("width", "64")
    visit.type("prompt", "<img src=x onerror=alert(1)>")
    visit.page.wait_for_function("document.querySelectorAll('[role=alert]').length === 0")
    visit.press()  # a prompt is text wherever it appears, or the dialog would be an error


@pytest.mark.slow
def test_fifty_is_not_a_share(visit: Visit) -> None:
    visit.merge()
    visit.page.locator("#ratio input[type=number]").fill("50")
    visit.page.locator("#ratio input[type=number]").blur()
    visit.wrong("50 is not possible: the ratio is a share, so 0.5 is half.")


@pytest.mark.slow
def test_what_to_know_about_prompts_is_said(visit: Visit) -> None:
    assert "The first 24 tokens are read." in visit.text("#prompt")
    visit.frugal()
    visit.type("prompt", "a lighthouse")
    visit.press()
    visit.wrong("emoji-sdxl knows twelve objects, and 'a lighthouse' names none of them: fox, ")


@pytest.mark.slow
def test_a_forecast_says_which_steps_it_computed(visit: Visit) -> None:
    visit.frugal(steps=12)
    visit.merge()
    for part, value in (("ratio", "0"), ("forecast", "0.3")):
        visit.page.locator(f"#{part} input[type=number]").fill(value)
        visit.page.locator(f"#{part} input[type=number]").blur()
    visit.press()
    assert {"forecast", "speed-up"} <= set(visit.cards())
    assert re.search(r"\d+ of 12 steps computed.*: 1, 2, 3, 4", visit.text("#computed p:first-of-type"))


@pytest.mark.slow
def test_a_curve_wants_an_image_first(visit: Visit) -> None:
    visit.tab("Trade-off")
    visit.page.locator("#generate-curve").click()
    visit.wrong("Generate an image first.")


@pytest.mark.slow
def test_everything_can_be_done_by_keyboard_and_has_a_name(visit: Visit) -> None:
    visit.frugal()
    visit.page.locator("#prompt textarea").focus()
    visit.page.keyboard.press("End")
    visit.page.keyboard.type("!")
    visit.page.keyboard.press("Enter")
    visit.page.locator("#cards .card").first.wait_for()
    handle = visit.page.get_by_role("slider", name="Share of the full image")
    handle.focus()
    places = [cut(visit.page)]
    for key in ("ArrowLeft", "ArrowLeft", "Home", "End"):
        visit.page.keyboard.press(key)
        visit.page.wait_for_timeout(100)
        places.append(cut(visit.page))
    assert places == pytest.approx([0.5, 0.45, 0.4, 0, 1], abs=0.02)
    assert handle.get_attribute("aria-valuenow") == "100"
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll("input, textarea, button, select, img, [role=slider]")]
          .filter((part) => part.checkVisibility())
          .filter((part) => !(part.ariaLabel || part.labels?.[0]?.innerText.trim()))
          .filter((part) => !(part.innerText.trim() || part.alt || part.querySelector("img")?.alt))
          .map((part) => part.outerHTML.slice(0, 200))"""
    )
    assert nameless == []


def cut(page: Any) -> float:
    """Where the edge between the two images is, as a share of their width."""
    image, edge = (page.locator(f"#pair {name}").first.bounding_box() for name in ("img", "[data-testid=slider]"))
    return float((edge["x"] + edge["width"] / 2 - image["x"]) / image["width"])


@pytest.mark.slow
def test_dark_and_light_differ_and_both_can_be_read(browser: Any, address: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        with Visit(browser, address, color_scheme=scheme) as visit:
            visit.page.locator("header p").wait_for()
            paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
            ink = visit.page.evaluate("getComputedStyle(document.querySelector('header p')).color")
            seen[scheme] = brightness(paper), brightness(ink)
            assert visit.errors == []
    assert seen["light"][0] - seen["light"][1] > 100
    assert seen["dark"][1] - seen["dark"][0] > 100


CLIPPED = """() => [...document.querySelectorAll("#controls input, #controls button, #where input")]
  .filter((part) => part.checkVisibility() && part.type !== "range" && part.type !== "radio")
  .filter((part) => part.scrollWidth > part.clientWidth + 1 || part.getBoundingClientRect().right > innerWidth)
  .map((part) => part.outerHTML.slice(0, 200))"""


@pytest.mark.slow
def test_nothing_sticks_out_sideways_on_a_phone(browser: Any, address: str) -> None:
    with Visit(browser, address, viewport={"width": 390, "height": 844}, has_touch=True) as visit:
        visit.frugal()
        visit.merge()
        assert visit.page.evaluate(CLIPPED) == []
        visit.press()
        visit.page.locator("#where").wait_for()
        assert visit.page.evaluate(CLIPPED) == []
        for name in ("Images", "Python", "Trade-off"):
            visit.tab(name)
            if name == "Trade-off":
                visit.page.locator("#generate-curve").click()
                visit.page.wait_for_function("document.querySelectorAll('#curve figure').length === 4")
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390, name
        assert visit.errors == []


def test_an_error_is_a_short_message_and_the_page_works_on(
    visit: Visit, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = unpatched(model)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("<b>no</b> room\nfor this")

    visit.frugal()
    visit.type("seed", "91")
    with monkeypatch.context() as patched:
        patched.setattr(model.pipe.unet.conv_out, "forward", fail)
        visit.page.locator("#generate").click()
        line = visit.wrong("That went wrong: RuntimeError: <b>no</b> room")
        assert "for this" not in line.inner_text()
    assert np.array_equal(unpatched(model), before)
    visit.press()
    assert visit.page.get_by_role("alert").count() == 0


def started(visit: Visit, seed: int) -> None:
    """Ask for an image of many steps, and wait until some are done."""
    visit.frugal(steps=200)
    visit.type("seed", str(seed))
    visit.page.locator("#generate").click()
    visit.page.locator("#pair").get_by_text(re.compile(r"in full - [1-9.]")).wait_for()


def idle(model: Model, seconds: float = 60) -> bool:
    """Whether the model is let go of within that time; two hundred steps take longer."""
    end = time.monotonic() + seconds
    while model.lock.locked() and time.monotonic() < end:
        time.sleep(0.05)
    return not model.lock.locked()


@pytest.mark.slow
def test_stop_stops(visit: Visit, model: Model) -> None:
    started(visit, seed=101)
    visit.page.locator("#stop").click()
    visit.wrong("Stopped.")
    assert idle(model)
    assert MARK not in model.pipe.unet.__dict__


@pytest.mark.slow
def test_closing_the_tab_cancels(browser: Any, address: str, model: Model, session: Session) -> None:
    before = unpatched(model)
    with Visit(browser, address) as visit:
        visit.type("prompt", "a tiger")
        started(visit, seed=102)
        assert model.lock.locked()
    assert idle(model)
    assert session._full.get(ImageSettings("emoji-sdxl", "a tiger", 102, 200, 64, 64)) is None  # nor was that finished
    assert np.array_equal(unpatched(model), before)


@pytest.mark.slow
def test_a_second_visitor_waits_for_the_first(
    browser: Any, address: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    generating, most, compare = 0, 0, session.compare

    def counted(*args: Any) -> Any:
        nonlocal generating, most
        generating += 1
        most = max(most, generating)
        try:
            return compare(*args)
        finally:
            generating -= 1

    monkeypatch.setattr(session, "compare", counted)
    with Visit(browser, address) as one, Visit(browser, address) as two:
        for seed, visit in enumerate((one, two)):
            visit.frugal(steps=4)
            visit.type("seed", str(200 + seed))
        one.page.locator("#generate").click()
        two.page.locator("#generate").click()
        for visit in (one, two):
            visit.page.locator("#cards .card").first.wait_for()
            assert visit.errors == []
    assert most == 1


@pytest.mark.slow
def test_the_page_sits_for_its_screenshot(browser: Any, address: str, tmp_path: Path) -> None:
    path = Path(SCREENSHOT) if SCREENSHOT else tmp_path / "web.png"
    with Visit(browser, address, viewport={"width": 1280, "height": 860}) as visit:
        if not SCREENSHOT:
            visit.frugal()
            visit.page.get_by_text("Forecast, size, steps and seed").click()
        visit.press()
        visit.page.mouse.move(0, 0)
        visit.page.wait_for_timeout(500)  # for buttons to fade
        shot = Image.open(io.BytesIO(visit.page.screenshot()))
        assert visit.errors == []
    shot.convert("RGB").save(path, optimize=True)
    assert shot.size == (1280, 860)
    assert path.stat().st_size < 500_000


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_twenty_requests_in_a_row_leave_everything_as_it_was(
    visit: Visit, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    before, dice, sizes = unpatched(model), random.Random(0), []
    methods = [
        "Recommended: forecast steps",
        "ToMA",
        "ToMA as in the paper",
        "ToMA stripe",
        "ToMA once per block",
        "ToMeSD",
        "ToFu",
        "ToDo (ratio is its own)",
    ]
    for turn in range(10 + 20):  # ten first, until Gradio has all its threads and every method its code
        visit.frugal(dice.randint(1, 3), dice.choice([64, 72, 96]))
        visit.type("seed", str(1000 + turn))
        visit.type("prompt", dice.choice(["a fox", "a panda on a pink background", "🦊 < & >"]))
        visit.choose("method", dice.choice(methods))
        visit.page.wait_for_timeout(1000)  # the ratio comes and goes with the method
        ratio = visit.page.locator("#ratio input[type=number]")
        if ratio.is_visible() and ratio.is_enabled():
            ratio.fill(f"{dice.randrange(1, 16) * 0.05:.2f}")
            ratio.blur()
        visit.press()
        sizes.append(resident())
    assert np.array_equal(unpatched(model), before)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert max(sizes[10:]) - max(sizes[:10]) < 40 * 2**20, [size // 2**20 for size in sizes]
