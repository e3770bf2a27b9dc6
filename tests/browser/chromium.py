"""Debian's Chromium, headless, and pages that remember what they complained about and asked for."""

import os
import shutil
from collections.abc import Iterator
from typing import Any, Self

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("chromium is not installed", allow_module_level=True)

PATIENCE = 120_000  # milliseconds: a busy machine is slow, not wrong
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=PATIENCE)
        yield opened
        opened.close()


class Opened:
    """A page, and everything it complained about or asked for."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def brightness(colour: str) -> float:
    """Mean of ``rgb(r, g, b)``."""
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(parts) / 3
