"""Parts of pages that need no script: the frame of a page, figures, tables, facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from tomadiff.evaluate.markup import Markup, data_uri, joined, tag
from tomadiff.evaluate.report import Figure

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # whatever a prompt says, nothing runs
_WIDEST = 1800  # pixels


def document(title: str, body: Any) -> str:
    """A whole file that loads nothing."""
    style = (files("tomadiff.evaluate") / "page" / "report.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )
    footer = tag("footer", "Written by tomadiff. This page holds everything it shows and asks nobody for anything.")
    return f"<!doctype html>\n{tag('html', head, tag('body', body, footer), lang='en')}\n"


def figure(shown: Figure, *more: Any) -> Markup:
    """A section with a picture, what to see in it, and whatever comes below."""
    picture = tag("img", src=data_uri(shown.image, _WIDEST), alt=shown.title)
    body = tag("figure", picture, tag("figcaption", shown.note), class_="figure panel", style="margin-inline: 0")
    return tag("section", tag("h2", shown.title), body, more)


def table(name: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """A table that scrolls by itself where the screen is narrow, also by keyboard; the first cell names its row."""
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in headings]))
    body = [tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]]) for row in rows]
    whole = tag("table", tag("caption", name), head, tag("tbody", body))
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
