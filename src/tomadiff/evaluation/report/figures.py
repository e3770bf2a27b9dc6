"""Figures of merging, made with Pillow alone so that they need no extra."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tomadiff.evaluation.runs.synthetic_image import Pixels, to_colours, to_tokens
from tomadiff.evaluation.runs.timer import interleaved
from tomadiff.merging.grid import Grid
from tomadiff.merging.plan import Plan
from tomadiff.methods.base import Method

Bytes = npt.NDArray[np.uint8]

PANEL, GAP, MARGIN, HEADING, CAPTION = 320, 16, 28, 58, 34
PAPER, INK, FAINT, GONE = (250, 249, 246), (32, 34, 40), (110, 112, 120), (226, 225, 221)
LEGEND = "Above: the tokens that stay.  Below: merged and unmerged again, with a line wherever two clusters meet."


@dataclass(frozen=True)
class MergeSample:
    """One plan for one image, and what it does to the image's colours."""

    plan: Plan
    grid: Grid
    ratio: float
    restored: Tensor
    psnr: float
    milliseconds: float

    @property
    def kept(self) -> int:
        """How many tokens are left after merging."""
        return self.plan.kept


def merge_sample(image: Pixels, method: Method, side: int = 64, repeats: int = 3) -> MergeSample:
    """Plan with the tokens of ``image`` and put its colours ``(1, side * side, 3)`` through merge and unmerge."""
    tokens, colours, grid = to_tokens(image, side), to_colours(image, side), Grid(side, side)
    plan = method.plan(tokens, grid)
    took = interleaved({"plan": lambda: method.plan(tokens, grid)}, tokens.device, repeats, warm_up=0)["plan"]
    restored = plan.unmerge(plan.merge(colours))
    return MergeSample(plan, grid, method.ratio, restored, psnr(colours, restored), 1000 * took.least)


def psnr(reference: Tensor, other: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of values in [0, 1]; infinite where they are equal."""
    error = torch.mean((reference.double() - other.double()) ** 2).item()
    return math.inf if error == 0 else -10 * math.log10(error)


def merge_map(image: Pixels, samples: Sequence[MergeSample]) -> Image.Image:
    """The image beside its samples: above, which tokens stay; below, every token in its cluster's colour."""
    grid = samples[0].grid
    width = 2 * MARGIN + (len(samples) + 1) * PANEL + len(samples) * GAP
    height = 2 * MARGIN + HEADING + 2 * PANEL + GAP + CAPTION
    canvas = Image.new("RGB", (width, height), PAPER)
    write(canvas, (MARGIN, height - MARGIN - 17), LEGEND, FAINT, 17)
    column(canvas, 0, "The image", f"and its {grid.tokens} tokens", _photo(image), _mosaic(image, grid))
    for place, sample in enumerate(samples, start=1):
        note = f"{sample.kept} tokens stay, {sample.psnr:.1f} dB"
        column(canvas, place, f"{sample.ratio:.0%} merged", note, destination_panel(sample), cluster_panel(sample))
    return canvas


def destination_panel(sample: MergeSample, size: int = PANEL) -> Image.Image:
    """Destinations in the colour of their cluster, merged-away tokens as blanks."""
    colours = as_grid(sample.restored, sample.grid)
    keeps = np.zeros(sample.grid.tokens, bool)
    keeps[sample.plan.destinations[0].cpu().numpy()] = True
    return _enlarge(np.where(keeps.reshape(sample.grid.height, -1, 1), colours, np.array(GONE, np.uint8)), size)


def cluster_panel(sample: MergeSample, size: int = PANEL) -> Image.Image:
    """Every token in its cluster's colour, with a line wherever two clusters meet."""
    panel = _enlarge(as_grid(sample.restored, sample.grid), size)
    lines = borders(clusters(sample.plan, sample.grid), size)
    return Image.composite(Image.new("RGB", panel.size, PAPER), panel, lines)


def clusters(plan: Plan, grid: Grid) -> npt.NDArray[np.int64]:
    """The destination, as a number in 0..K-1, that each token takes most from: ``(height, width)``.

    Of a batch the last sample is shown, which is the guided one where guidance stacks its passes.
    """
    kind = next(tensor for tensor in plan.state if tensor.is_floating_point())
    marks = torch.eye(plan.kept, dtype=kind.dtype, device=kind.device).expand(plan.batch, -1, -1)
    labels: npt.NDArray[np.int64] = plan.unmerge(marks)[-1].float().argmax(-1).cpu().numpy()
    return labels.reshape(grid.height, grid.width)


def borders(labels: npt.NDArray[np.integer[Any]], size: int | tuple[int, int]) -> Image.Image:
    """A mask of panel size that is faint where neighbouring tokens belong to different clusters."""
    big = np.asarray(_fit(Image.fromarray(labels.astype(np.int32)), size))
    meets = np.zeros(big.shape, bool)
    meets[:, 1:] |= big[:, 1:] != big[:, :-1]
    meets[1:, :] |= big[1:, :] != big[:-1, :]
    return Image.fromarray(meets.astype(np.uint8) * 105)


def _photo(image: Pixels) -> Image.Image:
    """The image itself at panel size."""
    photo = Image.fromarray((image * 255).round().astype(np.uint8))
    return photo.resize((PANEL, PANEL), Image.Resampling.LANCZOS)


def _mosaic(image: Pixels, grid: Grid) -> Image.Image:
    """The image as the colours of its tokens, nothing merged."""
    return _enlarge(as_grid(to_colours(image, grid.height), grid))


def as_grid(colours: Tensor, grid: Grid) -> Bytes:
    """Colours ``(1, N, 3)`` in [0, 1] as bytes ``(height, width, 3)``."""
    values = (colours[0].float().clamp(0, 1) * 255).round().byte().cpu().numpy()
    return values.reshape(grid.height, grid.width, 3)


def _enlarge(colours: Bytes, size: int = PANEL) -> Image.Image:
    """Bytes ``(height, width, 3)`` as a panel of sharp squares."""
    return _fit(Image.fromarray(colours), size)


def _fit(image: Image.Image, size: int | tuple[int, int]) -> Image.Image:
    """Any image at panel size (a side, or width and height) with its pixels left sharp."""
    return image.resize((size, size) if isinstance(size, int) else size, Image.Resampling.NEAREST)


def column(canvas: Image.Image, place: int, title: str, note: str, upper: Image.Image, lower: Image.Image) -> None:
    """One column of the figure: heading, note and two panels."""
    left, top = MARGIN + place * (PANEL + GAP), MARGIN + HEADING
    write(canvas, (left, MARGIN - 8), title, INK, 26)
    write(canvas, (left, MARGIN + 24), note, FAINT, 17)
    canvas.paste(upper, (left, top))
    canvas.paste(lower, (left, top + upper.height + GAP))


def write(
    canvas: Image.Image,
    at: tuple[int, int],
    text: str,
    colour: tuple[int, int, int],
    size: int,
    anchor: str = "la",
) -> None:
    """A line of text in Pillow's own font, so that the figure looks the same on every machine.

    ``anchor`` says which part of the text is ``at`` the place, in Pillow's letters: ``"mm"`` is its middle.
    """
    ImageDraw.Draw(canvas).text(at, text, fill=colour, font=ImageFont.load_default(size), anchor=anchor)
