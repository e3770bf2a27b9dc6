"""Images next to each other, and what merged laid over what was generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from tomadiff.evaluation.report.figures import (
    CAPTION,
    FAINT,
    GAP,
    HEADING,
    INK,
    MARGIN,
    PANEL,
    PAPER,
    borders,
    clusters,
    column,
    write,
)
from tomadiff.merging.plan import Plan

LEGEND = "Above: tokens that merged away are veiled, those that stay are clear.  Below: outlines of what merged."
_CELL, _SIDE, _TOP, _BELOW = 200, 170, 64, 26


@dataclass(frozen=True)
class MergedImage:
    """An image and the plan its last step used."""

    image: Image.Image
    plan: Plan
    title: str


def merge_overlay(full: Image.Image, merged: Sequence[MergedImage]) -> Image.Image:
    """The full image beside merged ones: above, which tokens stay; below, where clusters meet."""
    photo = _photo(full)
    width = 2 * MARGIN + (len(merged) + 1) * PANEL + len(merged) * GAP
    height = 2 * MARGIN + HEADING + 2 * photo.height + GAP + CAPTION
    canvas = Image.new("RGB", (width, height), PAPER)
    write(canvas, (MARGIN, height - MARGIN - 17), LEGEND, FAINT, 17)
    grid = merged[0].plan.grid
    note = f"{grid.tokens} tokens ({grid.height} x {grid.width})"
    column(canvas, 0, "in full", note, photo, _ruled(photo, grid.height, grid.width))
    for place, one in enumerate(merged, start=1):
        note = f"{one.plan.kept} of {one.plan.tokens} tokens stay"
        own, labels = _photo(one.image), clusters(one.plan, one.plan.grid)
        column(canvas, place, one.title, note, veiled(own, stays(one.plan)), outlined(own, labels))
    return canvas


def _photo(image: Image.Image) -> Image.Image:
    """An image as wide as a panel."""
    tall = round(PANEL * image.height / image.width)
    return image.convert("RGB").resize((PANEL, tall), Image.Resampling.LANCZOS)


def veiled(photo: Image.Image, stays: npt.NDArray[np.bool_]) -> Image.Image:
    """Merged-away tokens fade into the paper; ``stays`` ``(height, width)`` is true for destinations."""
    mask = Image.fromarray(np.where(stays, 0, 200).astype(np.uint8)).resize(photo.size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", photo.size, PAPER), photo, mask)


def outlined(photo: Image.Image, labels: npt.NDArray[np.integer[Any]]) -> Image.Image:
    """Light lines with a dark rim, to be seen on any colour, where the clusters ``(height, width)`` meet."""
    meets = borders(labels, photo.size)
    line = meets.point(lambda value: 235 if value else 0)
    rim = line.filter(ImageFilter.MaxFilter(3)).point(lambda value: 70 if value else 0)
    panel = photo.copy()
    panel.paste(INK, (0, 0), rim)
    panel.paste(PAPER, (0, 0), line)
    return panel


def stays(plan: Plan) -> npt.NDArray[np.bool_]:
    """``(height, width)`` true for destinations; of a batch, those of the last sample, the guided one."""
    found = np.zeros(plan.tokens, bool)
    found[plan.destinations[-1].cpu().numpy()] = True
    return found.reshape(plan.grid.height, plan.grid.width)


def _ruled(photo: Image.Image, height: int, width: int) -> Image.Image:
    """The token grid itself: every token on its own."""
    panel = photo.copy()
    panel.paste(PAPER, (0, 0), borders(np.arange(height * width).reshape(height, width), photo.size))
    return panel


def image_grid(rows: Sequence[tuple[str, Sequence[Image.Image], Sequence[str]]], heads: Sequence[str]) -> Image.Image:
    """Rows of images under headings; a row is its label, its images, and a note below each of them."""
    size = (MARGIN * 2 + _SIDE + len(heads) * (_CELL + GAP), MARGIN + _TOP + len(rows) * (_CELL + _BELOW + GAP))
    canvas = Image.new("RGB", size, PAPER)
    for place, head in enumerate(heads):
        write(canvas, (MARGIN + _SIDE + place * (_CELL + GAP), MARGIN + 8), head, INK, 24)
    for line, (label, images, notes) in enumerate(rows):
        top = MARGIN + _TOP + line * (_CELL + _BELOW + GAP)
        _label(canvas, label, top)
        for place, (image, note) in enumerate(zip(images, notes, strict=True)):
            left = MARGIN + _SIDE + place * (_CELL + GAP)
            canvas.paste(image.convert("RGB").resize((_CELL, _CELL), Image.Resampling.LANCZOS), (left, top))
            write(canvas, (left, top + _CELL + 5), note, FAINT, 15)
    return canvas


def _label(canvas: Image.Image, text: str, top: int) -> None:
    """A prompt in lines of a few words."""
    from textwrap import wrap

    for line, words in enumerate(wrap(text, 17)[:8]):
        write(canvas, (MARGIN, top + line * 22), words, INK, 17)
