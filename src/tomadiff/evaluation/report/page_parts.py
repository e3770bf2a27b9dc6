"""Parts of pages: the frame, figures, tables, facts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from tomadiff.evaluation.report.markup import Markup, data_uri, joined, tag
from tomadiff.evaluation.report.report import Figure

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # whatever a prompt says, nothing runs
_WIDEST = 1800  # pixels


def document(title: str, body: Any, script: str = "") -> str:
    """A whole file that loads nothing and runs nothing but ``script``, a file of this package."""
    own = resource(script) if script else ""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(own)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(resource("report.css"))),
    )
    footer = tag("footer", "Written by tomadiff. This page holds everything it shows and asks nobody for anything.")
    whole = tag("body", body, footer, tag("script", Markup(own)) if own else None)
    return f"<!doctype html>\n{tag('html', head, whole, lang='en')}\n"


def resource(name: str) -> str:
    """A file that pages are made with."""
    return (files("tomadiff.evaluation.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    if not script:
        return _POLICY
    return f"{_POLICY}; script-src 'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'"


def figure(shown: Figure, *more: Any) -> Markup:
    """A section with an image, what to see in it line by line, and whatever comes below."""
    image = tag("img", src=data_uri(shown.image, _WIDEST), alt=shown.title)
    body = tag(
        "figure",
        image,
        tag("figcaption", [tag("p", line) for line in shown.note.splitlines()]),
        class_="figure panel",
        style="margin-inline: 0",
    )
    return tag("section", tag("h2", shown.title), body, more)


def table(name: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """A table of cells; the first one names its row."""
    body = [tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]]) for row in rows]
    return table_of(name, headings, body)


def table_of(name: str, headings: Sequence[str], rows: Any) -> Markup:
    """A table of rows that are marked up; it scrolls by itself where the screen is narrow, also by keyboard."""
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in headings]))
    whole = tag("table", tag("caption", name), head, tag("tbody", rows))
    return tag("div", whole, class_="scroll", role="region", aria_label=name, tabindex=0)


def folded(words: str, *inside: Any) -> Markup:
    """Something to unfold."""
    return tag("details", tag("summary", words), inside)


def facts(title: str, known: Mapping[str, Any]) -> Markup:
    """A section of names and values."""
    items = [(tag("dt", name), tag("dd", _plain(value))) for name, value in known.items() if value != ""]
    return tag("section", tag("h2", title), tag("div", tag("dl", items), class_="panel"))


def _plain(value: Any) -> Markup:
    return joined(value if isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False))
