"""Make docs/images/diversity.png: who finds every cluster when there are as many destinations as clusters?

    .venv/bin/python docs/images/diversity.py

The features are 113 tokens in 32 channels around 8 centres at right angles, from a cluster of 44 tokens down to one of
3, as an image has a large sky and a small sun. They lie in order, cluster after cluster, which is the kindest case for
evenly spaced destinations. The plane they are shown on is a linear projection that puts the centres on a circle.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tomadiff.evaluation.report.figures import FAINT, GAP, INK, MARGIN, PANEL, PAPER
from tomadiff.merging.select import SELECTORS, Selection, cosines, random

SIZES = (44, 24, 14, 10, 8, 6, 4, 3)
CHANNELS, SPREAD, SEED, TRIALS = 32, 0.05, 3, 200
PANELS = {"facility_location": "Facility location", "strided": "Evenly spaced", "random": "Random"}
COLOURS = ("#4269d0", "#c98a00", "#e0524a", "#2a9d8f", "#3ca951", "#e377b9", "#8d63c9", "#8a5a36")
MISSED = (196, 40, 40)
HEADING, CAPTION, FINE = 58, 40, 2  # FINE: made twice as large and reduced, which smooths the edges
LEGEND = "Small dots: tokens, coloured by cluster.  Ringed: the 8 destinations.  Dashed: a cluster that has none."


def features(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """``(N, C)`` tokens, their ``(N,)`` clusters, and the ``(k, C)`` centres."""
    own = torch.Generator().manual_seed(seed)
    centres = torch.linalg.qr(torch.randn(CHANNELS, len(SIZES), generator=own)).Q.T
    labels = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    return centres[labels] + SPREAD * torch.randn(len(labels), CHANNELS, generator=own), labels, centres


def choose(name: str, tokens: Tensor, seed: int) -> Selection:
    """As many destinations as there are clusters."""
    similarity = (cosines(tokens[None])[0] + 1) / 2
    if name == "random":
        return random(similarity, len(SIZES), generator=torch.Generator().manual_seed(seed))
    return SELECTORS[name](similarity, len(SIZES), None)


def coverage(tokens: Tensor, chosen: Selection) -> float:
    """Mean similarity of a token to its nearest destination."""
    similarity = (cosines(tokens)[0] + 1) / 2
    return float(similarity[:, chosen.indices[0]].amax(1).mean())


def on_circle(centres: Tensor) -> Tensor:
    """``(C, 2)`` projection under which orthonormal ``centres`` lie evenly on the unit circle."""
    turns = torch.arange(len(centres)) * (2 * math.pi / len(centres)) - math.pi / 2
    return torch.matmul(centres.T, torch.stack([turns.cos(), turns.sin()], 1))


def panel(tokens: Tensor, labels: Tensor, centres: Tensor, chosen: Selection) -> Image.Image:
    """One cloud of tokens with its destinations."""
    image = Image.new("RGB", (FINE * PANEL, FINE * PANEL), "white")
    draw, scale = ImageDraw.Draw(image), FINE * PANEL * 0.36
    plane, picks = on_circle(centres), set(chosen.indices[0].tolist())
    spots = ((torch.matmul(tokens, plane)) * scale + FINE * PANEL / 2).tolist()
    for token, (x, y) in sorted(enumerate(spots), key=lambda item: item[0] in picks):
        _token(draw, x, y, COLOURS[labels[token]], token in picks)
    for cluster in sorted(set(range(len(SIZES))) - set(labels[list(picks)].tolist())):
        x, y = (torch.matmul(centres[cluster], plane) * scale + FINE * PANEL / 2).tolist()
        _missed(draw, x, y)
    return image.resize((PANEL, PANEL), Image.Resampling.LANCZOS)


def _token(draw: ImageDraw.ImageDraw, x: float, y: float, colour: str, picked: bool) -> None:
    radius = FINE * (6.5 if picked else 2.6)
    box = (x - radius, y - radius, x + radius, y + radius)
    draw.ellipse(box, fill=colour, outline=INK if picked else None, width=2 * FINE if picked else 0)


def _missed(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float = 38 * FINE) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    for start in range(0, 360, 20):
        draw.arc(box, start, start + 11, fill=MISSED, width=2 * FINE)


def figure() -> Image.Image:
    """All panels side by side, with headings and a legend."""
    tokens, labels, centres = features(SEED)
    width = 2 * MARGIN + len(PANELS) * PANEL + (len(PANELS) - 1) * GAP
    canvas = Image.new("RGB", (width, MARGIN + HEADING + PANEL + CAPTION + MARGIN), PAPER)
    for place, (name, title) in enumerate(PANELS.items()):
        left, chosen = MARGIN + place * (PANEL + GAP), choose(name, tokens, SEED)
        found = len(labels[chosen.indices[0]].unique())
        note = f"{found} of {len(SIZES)} clusters, coverage {coverage(tokens, chosen):.3f}"
        _write(canvas, left, MARGIN - 8, title, INK, 26)
        _write(canvas, left, MARGIN + 24, note, FAINT, 17)
        canvas.paste(panel(tokens, labels, centres, chosen), (left, MARGIN + HEADING))
    _write(canvas, MARGIN, canvas.height - MARGIN - 17, LEGEND, FAINT, 17)
    return canvas


def _write(canvas: Image.Image, x: int, y: int, text: str, colour: tuple[int, int, int], size: int) -> None:
    ImageDraw.Draw(canvas).text((x, y), text, fill=colour, font=ImageFont.load_default(size))


def clusters_found(name: str) -> tuple[float, int]:
    """Clusters with a destination on average over many clouds, and in how many clouds none was missed."""
    found = []
    for seed in range(TRIALS):
        tokens, labels, _ = features(seed)
        found.append(len(labels[choose(name, tokens, seed).indices[0]].unique()))
    return sum(found) / TRIALS, found.count(len(SIZES))


def main() -> None:
    """Make the image, and say how typical it is."""
    torch.set_num_threads(1)
    path = Path(__file__).with_name("diversity.png")
    figure().save(path, optimize=True)
    for name in SELECTORS:
        mean, all_found = clusters_found(name)
        print(
            f"{name:18} {mean:.2f} of {len(SIZES)} clusters on average, all of them in {all_found} of {TRIALS} clouds"
        )


if __name__ == "__main__":
    main()
