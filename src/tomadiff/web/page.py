"""What the page does when somebody touches it, and how it is served.

Annotations are not put off here (``from __future__``): Gradio reads them to find out who wants the request.
"""

import ipaddress
import os
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tomadiff.errors import SettingError, TomaError
from tomadiff.evaluation.report.markup import tag
from tomadiff.evaluation.runs.prompts import unknown_objects
from tomadiff.methods.registry import CATALOGUE
from tomadiff.web.errors import line_of
from tomadiff.web.layout import Layout, about
from tomadiff.web.maps import Maps, overlay
from tomadiff.web.metric_cards import cards
from tomadiff.web.progress import Tell, Visitors
from tomadiff.web.request import ImageRequest, has_settings, read
from tomadiff.web.security import Fence
from tomadiff.web.session import Compared, Session
from tomadiff.web.steps import steps_shown
from tomadiff.web.tradeoff import COMPUTED, MERGED, Shot, curves, ratios

HOST = "127.0.0.1"  # nobody else can reach it
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "Consolas", "Menlo", "monospace")
QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# One at a time, whatever the model: times mean nothing if two share the machine.
QUEUED = {"concurrency_id": "generating", "concurrency_limit": 1, "api_visibility": "private"}
HOUR = 3600  # seconds
MOST_WAITING = 8  # images in the queue
MOST_VISITORS = 64  # whose images are remembered

Given = dict[Any, Any]
"""Values, or what to change them to, by the part of the page that holds them."""


class MissingGradioError(TomaError, ImportError):
    """Gradio is not installed."""


def gradio() -> Any:
    """Gradio, without its analytics."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as problem:
        raise MissingGradioError('The page needs Gradio, which is not here: pip install "tomadiff[web]"') from problem
    return gradio


def serve(session: Session, port: int | None = None, host: str = HOST, browser: bool = False) -> tuple[Any, str]:
    """Start the page in the background: Gradio's ``Blocks``, which can be closed, and its address.

    Args:
        session: generates the images.
        port: ``None`` takes the first free one from 7860.
        host: an address of this machine; others than the default can be reached by whoever reaches this machine.
        browser: show the page.
    """
    gr, allowed = gradio(), allowed_hosts(host)
    blocks = build(session).queue(max_size=MOST_WAITING, api_open=False)
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="slate", radius_size="lg", font=FONTS, font_mono=MONO)
    settings = {
        "theme": theme, "css": _resource("page.css"), "head": f"<script>{_resource('page.js')}</script>",
        "footer_links": [], "run_history": False, "ssr_mode": False, "enable_monitoring": False, "quiet": True,
        "_frontend": False,  # else Gradio gives up where a busy machine takes three seconds to respond
        "share": False, "max_file_size": 1, "state_session_capacity": MOST_VISITORS, "app_kwargs": _guarded(allowed),
    }  # fmt: skip
    _bypass_proxies(host)
    try:
        _, address, _ = blocks.launch(
            server_name=host, server_port=port, inbrowser=browser, prevent_thread_lock=True, **settings
        )
    except OSError as problem:
        if port is None:
            raise
        raise SettingError(f"port={port} is taken; choose another, or leave it out.") from problem
    return blocks, address


def is_private(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def allowed_hosts(host: str) -> list[str]:
    """Names that a browser may call the page by: others are names that somebody made point here."""
    bare = host.strip("[]")
    if bare in ("", "*", "0", "0.0.0.0", "::"):
        raise SettingError(f"host={host!r} opens every network there is; give one address, such as 192.168.1.5.")
    return list(dict.fromkeys(["localhost", HOST, bare.lower(), f"[{bare.lower()}]"]))


def _guarded(allowed: list[str]) -> dict[str, Any]:
    """What Gradio's server is made with, so that nothing but the page reaches it."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)
    return {"middleware": [hosts, Middleware(Fence, folder=Path(folder().name))]}


@cache
def folder() -> "TemporaryDirectory[str]":
    """Where Gradio keeps images for browsers to fetch: nobody else looks into it, and it goes with the process."""
    made = TemporaryDirectory(prefix="tomadiff-web-")
    os.environ["GRADIO_TEMP_DIR"] = made.name
    return made


def _bypass_proxies(host: str) -> None:
    """Gradio asks its own server whether it is there, and must not ask a proxy instead."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = f"{known},{host}" if known else host


def _resource(name: str) -> str:
    return (files("tomadiff.web") / "static" / name).read_text(encoding="utf-8")


def build(session: Session) -> Any:
    """The page as Gradio's ``Blocks``."""
    gr = gradio()
    folder()  # before any part of the page asks Gradio for one; what is in it goes after an hour
    with gr.Blocks(title="tomadiff", analytics_enabled=False, delete_cache=(HOUR, HOUR), fill_width=True) as blocks:
        page = Page(Layout(gr, session), session)
        page.check_fields()
        page.generate_images()
        page.generate_curves()
        page.turn_maps()
        page.stop_generating(blocks)
    return blocks


class Page:
    """What happens when somebody touches a part of the page."""

    def __init__(self, parts: Layout, session: Session) -> None:
        self.parts, self.session, self.visitors = parts, session, Visitors()

    def check_fields(self) -> None:
        """Say at once what is wrong with a field; another model brings other sizes."""
        parts, fields = self.parts, list(self.parts.fields.values())

        def check(given: Given) -> Given:
            return self._lines(self._read(given))

        def choose(name: str) -> tuple[int, int, int, Any]:
            model = self.session.models[name]
            return model.canvas.width, model.canvas.height, model.steps, parts.gr.update(info=about(model))

        def offer(method: str) -> list[Any]:
            return [parts.gr.update(visible=has_settings(method)) for _ in parts.settings]

        lines = list(parts.problems.values())
        changes = [*(field.change for field in fields), parts.generate.click]
        parts.gr.on(changes, check, set(fields), lines, trigger_mode="always_last", **QUICK)
        parts.model.input(choose, parts.model, [parts.width, parts.height, parts.steps, parts.prompt], **QUICK)
        parts.method.change(offer, parts.method, parts.settings, **QUICK)

    def _read(self, given: Given) -> ImageRequest | dict[str, str]:
        values = {name: given[field] for name, field in self.parts.fields.items()}
        return read(values, self.session.models[values["model"]].canvas)

    def _lines(self, found: ImageRequest | dict[str, str]) -> Given:
        """What is wrong, below each field."""
        wrong = {} if isinstance(found, ImageRequest) else found
        return {line: self.parts.line(wrong.get(name)) for name, line in self.parts.problems.items()}

    def generate_images(self) -> None:
        """The button: both images and everything about them."""
        import gradio as gr

        parts, bar = self.parts, gr.Progress()
        outputs = [
            parts.notice, parts.shown, parts.pair, parts.cards, parts.computed, parts.map, parts.note, parts.merged,
            parts.where, parts.step, parts.code, parts.summary, *parts.problems.values(),
        ]  # fmt: skip

        def generate(given: Given, browser: gr.Request, progress: Any = bar) -> Given:
            request = self._read(given)
            if not isinstance(request, ImageRequest):
                return self._lines(request)
            try:
                with self.visitors.waiting(browser.session_hash) as stop:
                    compared = self.session.compare(request, _teller(progress), stop)
                return self._shown(compared, given[parts.view])
            except Exception as problem:
                return {parts.notice: parts.line(line_of(problem))}

        inputs, presses = {parts.view, *parts.fields.values()}, [parts.generate.click, parts.prompt.submit]
        gr.on(presses, generate, inputs, outputs, show_progress_on=parts.pair, **QUEUED)

    def _shown(self, compared: Compared, view: str) -> Given:
        parts, maps = self.parts, compared.after.maps
        settings = compared.request.settings
        model, where, steps = self.session.models[settings.model], next(iter(maps), None), settings.steps
        shown, note = self._over(compared, view, where, steps)
        return {
            parts.notice: parts.line(unknown_objects(model.name if model.embedded else "", [settings.prompt]) or None),
            parts.shown: compared.request,
            parts.pair: (compared.before.image, compared.after.image),
            parts.cards: self._cards(compared),
            parts.computed: steps_shown(compared.after.pattern, compared.after.why),
            parts.map: shown,
            parts.note: note,
            parts.merged: parts.gr.update(visible=bool(maps)),
            parts.where: parts.gr.update(choices=_places(maps), value=where),
            parts.step: parts.gr.update(maximum=max(steps, 2), value=steps, visible=steps > 1),
            parts.code: model.python(compared.request),
            parts.summary: compared.after.summary,
        }

    def _cards(self, compared: Compared) -> str:
        """Times, the speed-up if both are of one go and something was done differently, and metrics."""
        after, times = compared.after, (compared.before.seconds, compared.after.seconds)
        done = [("merged", bool(after.maps)), ("forecast", bool(after.pattern.forecast))]
        title = " and ".join(word for word, holds in done if holds)
        return cards(*times, compared.metrics, compared.reused, title)

    def turn_maps(self) -> None:
        """Another view, place or step of the merge map; nothing is generated again."""
        parts = self.parts

        def turn(request: ImageRequest | None, view: str, where: str | None, step: int) -> tuple[Any, str]:
            compared = None if request is None else self.session.cached(request)
            if compared is None:
                return None, tag(
                    "p", "Generate an image first." if request is None else "Generate it again to see what merged."
                )
            return self._over(compared, view, where, step)

        turns = [parts.view.input, parts.where.input, parts.step.input]
        inputs = [parts.shown, parts.view, parts.where, parts.step]
        parts.gr.on(turns, turn, inputs, [parts.map, parts.note], trigger_mode="always_last", **QUICK)

    def _over(self, compared: Compared, view: str, where: str | None, step: int) -> tuple[Any, str]:
        found = compared.after.maps.get(where or "", {}).get(int(step) - 1)
        if found is None:
            return compared.after.image, tag("p", "Nothing merged here.")
        return overlay(compared.after.image, found, view), tag("p", f"{where}, step {step:g}: {found}")

    def generate_curves(self) -> None:
        """The second tab: the image that is shown, at several ratios, a point at a time."""
        import gradio as gr

        parts, bar = self.parts, gr.Progress()

        def generate(request: ImageRequest | None, browser: gr.Request, progress: Any = bar) -> Iterator[Any]:
            if request is None:
                yield {parts.curve_notice: parts.line("Generate an image first.")}
                return
            try:
                with self.visitors.waiting(browser.session_hash) as stop:
                    shots: list[Compared] = []
                    for compared in self.session.curve(request, ratios(request.variant.ratio), _teller(progress), stop):
                        shots.append(compared)
                        yield {parts.curve_notice: parts.line(None), parts.curve: _curve(shots)}
            except Exception as problem:
                yield {parts.curve_notice: parts.line(line_of(problem))}

        outputs = [parts.curve_notice, parts.curve]
        parts.generate_curve.click(generate, parts.shown, outputs, show_progress_on=parts.curve, **QUEUED)

    def stop_generating(self, blocks: Any) -> None:
        """Stop for whoever presses the button or closes the tab."""
        import gradio as gr

        def dismiss(browser: gr.Request) -> None:
            self.visitors.dismiss(browser.session_hash)

        self.parts.stop.click(dismiss, **QUICK)
        blocks.unload(dismiss)


def _teller(progress: Any) -> Tell:
    def tell(done: int, total: int, what: str) -> None:
        progress((done, total), desc=what, unit="steps")

    return tell


def _places(maps: Maps) -> list[tuple[str, str]]:
    """Blocks, or levels, with the grid that they see."""
    grids = {name: next(iter(steps.values())).stays.shape for name, steps in maps.items()}
    return [(f"{name} ({height} × {width})", name) for name, (height, width) in grids.items()]


def _curve(shots: list[Compared]) -> str:
    full, asked = shots[0].before, shots[0].request.variant
    forecasts = not has_settings(asked.entry)
    across, title = (COMPUTED, "forecast") if forecasts else (MERGED, CATALOGUE[asked.entry].title)
    places = [one.after.pattern.share if forecasts else one.request.variant.ratio for one in shots]
    points = [Shot(one.after.image, at, one.after.seconds, one.metrics) for one, at in zip(shots, places, strict=True)]
    return curves(title, Shot(full.image, float(forecasts), full.seconds, {}), points, across)
