"""HTML and SVG out of Python values: whatever is not markup by its type is escaped, so no prompt can become a tag.

Used instead of Jinja2: pages are nested from typed parts that are tested one by one, and charts share their tags.
"""

from __future__ import annotations

import base64
import html
import io
from typing import Any

from PIL import Image, features

_VOID = frozenset({"img", "input", "meta", "br", "link"})
_LOSSLESS_SIDE = 192  # pixels; small images stay exact, large ones would make the page heavy


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """``tag("p", "1 < 2", class_="note")`` → ``<p class="note">1 &lt; 2</p>``.

    Children are markup, text, or lists of these. In names of attributes ``_`` stands for ``-``, and a last one is
    dropped (``class_``); a value of ``True`` writes the name alone, ``None`` and ``False`` nothing.
    """
    opening = f"<{name}{''.join(_attribute(*pair) for pair in attributes.items())}>"
    return Markup(opening if name in _VOID else f"{opening}{joined(children)}</{name}>")


def joined(children: Any) -> Markup:
    """Any nest of children as one piece of markup."""
    if isinstance(children, Markup):
        return children
    if isinstance(children, list | tuple):
        return Markup("".join(map(joined, children)))
    return Markup("" if children is None else html.escape(str(children)))


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def data_uri(image: Image.Image, side: int = 512) -> str:
    """An image as an address that needs no file, at most ``side`` pixels wide and high."""
    shown = image.convert("RGB")
    if max(shown.size) > side:
        shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    kind = "PNG" if max(shown.size) <= _LOSSLESS_SIDE else "WEBP" if features.check("webp") else "JPEG"
    held = io.BytesIO()
    shown.save(held, kind, **({"optimize": True} if kind == "PNG" else {"quality": 92}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(held.getvalue()).decode()}"
