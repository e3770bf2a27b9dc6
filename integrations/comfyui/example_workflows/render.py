"""Draw the workflows of this folder as SVG: ``python render.py`` writes one beside each JSON file."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

_MARGIN, _TITLE, _ROW = 30, 26, 20
_COLOURS = {
    "MODEL": "#b39ddb",
    "CLIP": "#c9a227",
    "VAE": "#d9534f",
    "LATENT": "#d16ba5",
    "CONDITIONING": "#e08a3c",
    "IMAGE": "#4a90d9",
    "STRING": "#6aa84f",
}
_PLAIN = "#888888"


def svg(workflow: dict[str, Any]) -> str:
    """Boxes and lines, where ComfyUI shows them."""
    nodes = {node["id"]: node for node in workflow["nodes"]}
    width = max(node["pos"][0] + node["size"][0] for node in nodes.values()) + _MARGIN
    height = max(node["pos"][1] + _height(node) for node in nodes.values()) + _MARGIN
    parts = [_line(nodes, link) for link in workflow["links"]] + [_box(node) for node in nodes.values()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""])


def _height(node: dict[str, Any]) -> float:
    rows = max(len(node["inputs"]), len(node["outputs"])) + len(node["widgets_values"])
    return max(node["size"][1], _TITLE + _ROW * (rows + 0.5))


def _port(node: dict[str, Any], place: int, is_output: bool) -> tuple[float, float]:
    left, top = node["pos"]
    return left + node["size"][0] * is_output, top + _TITLE + _ROW * (place + 0.6)


def _line(nodes: dict[int, Any], link: list[Any]) -> str:
    _, source, output, target, given, kind = link
    (x, y), (to_x, to_y) = _port(nodes[source], output, True), _port(nodes[target], given, False)
    bend = max(40.0, abs(to_x - x) / 2)
    path = f"M{x:g} {y:g} C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
    return f'<path d="{path}" fill="none" stroke="{_COLOURS.get(kind, _PLAIN)}" stroke-width="3"/>'


def _box(node: dict[str, Any]) -> str:
    (left, top), width, height = node["pos"], node["size"][0], _height(node)
    own = node["type"].startswith("Tomadiff")
    fill, edge = ("#e8f4e8", "#2e7d32") if own else ("#f4f4f4", "#999999")
    parts = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height:g}" rx="8" fill="{fill}" stroke="{edge}"/>',
        _text(left + 12, top + 18, node["type"], "bold"),
    ]
    for place, port in enumerate(node["inputs"]):
        parts += _dot(port, *_port(node, place, False), "start", 10)
    for place, port in enumerate(node["outputs"]):
        parts += _dot(port, *_port(node, place, True), "end", -10)
    first = max(len(node["inputs"]), len(node["outputs"]))
    for place, value in enumerate(node["widgets_values"]):
        parts.append(_text(left + 24, top + _TITLE + _ROW * (first + place + 0.8), str(value), colour="#444444"))
    return "\n".join(parts)


def _dot(port: dict[str, Any], x: float, y: float, anchor: str, aside: int) -> list[str]:
    colour = _COLOURS.get(port["type"], _PLAIN)
    label = _text(x + aside, y + 4, port["name"], anchor=anchor, colour="#444444")
    return [f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="{colour}"/>', label]


def _text(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start", colour: str = "#111111") -> str:
    style = f'font-size="13" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def main() -> None:
    """Write every drawing anew."""
    for path in sorted(Path(__file__).parent.glob("*.json")):
        path.with_suffix(".svg").write_text(svg(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
