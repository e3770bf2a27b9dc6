"""Hidden states in the colours of the image they become: the paper's figures 3 and 9.

The tokens of a block are put into a few clusters by k-means, without looking at the image, and each cluster is
painted with the mean colour that its tokens have in the finished image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from tomadiff.evaluation.inspect.observe import Place
from tomadiff.evaluation.metrics.features import to_pixels
from tomadiff.evaluation.report.figures import FAINT, GAP, INK, MARGIN, PAPER, write
from tomadiff.merging.grid import Grid
from tomadiff.merging.select import facility_location

CLUSTERS = 8
TITLE = "Hidden states at the start of {} of {} blocks, each in {} clusters"
LEGENDS = (
    "k-means sees no image; each cluster is then painted in the mean colour that the finished image has under it.",
    "Below: how many neighbours are in the same cluster (and how many would be, if the clusters were scattered).",
)
_CELL, _SIDE, _TOP, _BELOW = 128, 190, 118, 36
_ROUNDS = 50
_SEEDED_FROM = 1024  # tokens that seeds are chosen among: the table of all distances in a large grid would be huge


@dataclass(frozen=True)
class Clustered:
    """The tokens of one block at one step, by cluster: ``labels`` ``(height, width)``."""

    place: Place
    step: int
    labels: Tensor = field(repr=False)

    @property
    def alike(self) -> float:
        """Share of neighbouring tokens, beside and above each other, that are in one cluster."""
        beside = self.labels[:, 1:] == self.labels[:, :-1]
        above = self.labels[1:] == self.labels[:-1]
        return float(torch.cat([beside.flatten(), above.flatten()]).double().mean())

    @property
    def chance(self) -> float:
        """The share that would be, were the same clusters scattered over the grid."""
        sizes = self.labels.flatten().bincount().double()
        return float((sizes / sizes.sum()).square().sum())


def clustered(place: Place, step: int, tokens: Tensor, grid: Grid) -> Clustered:
    """Cluster ``tokens`` ``(N, C)`` of a block."""
    return Clustered(place, step, kmeans(tokens).cpu().view(grid.height, grid.width))


def kmeans(tokens: Tensor, count: int = CLUSTERS) -> Tensor:
    """Put ``tokens`` ``(N, C)`` into ``count`` clusters near whose means they lie: ``(N,)`` numbers from 0.

    Lloyd's rounds from tokens that facility location chooses, which finds small clusters and uses no random numbers.
    """
    rows = tokens.float()
    rows = rows - rows.mean(0)  # moves no cluster, and spares the distances what all tokens have in common
    centres = rows[_seeds(rows, min(count, len(rows)))]
    labels = torch.cdist(rows, centres).argmin(1)
    for _ in range(_ROUNDS):
        centres = _means(rows, labels, centres)
        moved = torch.cdist(rows, centres).argmin(1)
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels


def _seeds(rows: Tensor, count: int) -> Tensor:
    """``(count,)`` rows; facility location on squared distances is greedy for the very sum that k-means minimises."""
    some = torch.arange(0, len(rows), max(1, len(rows) // _SEEDED_FROM), device=rows.device)
    apart = torch.cdist(rows[some], rows[some]).square()
    similarity = 1 - apart / apart.max().clamp_min(torch.finfo(apart.dtype).tiny)
    return some[facility_location(similarity[None], count).indices[0]]


def _means(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """``(count, C)`` means of the clusters; that of an empty one stays where it was."""
    members = torch.nn.functional.one_hot(labels, len(centres)).to(rows.dtype)
    sizes = members.sum(0)[:, None]
    return torch.where(sizes > 0, members.T @ rows / sizes.clamp_min(1), centres)


# ---------------------------------------------------------------------------------------------- images
def contact_sheet(cells: Sequence[Clustered], image: Image.Image) -> Image.Image:
    """Blocks from top to bottom, steps from left to right, and the image itself as tokens of each block."""
    blocks = list(dict.fromkeys(cell.place for cell in cells))
    steps = sorted({cell.step for cell in cells})
    tall = round(_CELL * image.height / image.width) + _BELOW
    width, height = _left(len(steps)) + _CELL + MARGIN, 2 * MARGIN + _TOP + len(blocks) * tall
    canvas = Image.new("RGB", (width, height), PAPER)
    write(canvas, (MARGIN, MARGIN - 10), TITLE.format(len(blocks), blocks[0].total, CLUSTERS), INK, 26)
    for line, text in enumerate(LEGENDS):
        write(canvas, (MARGIN, MARGIN + 26 + 22 * line), text, FAINT, 17)
    for column, step in enumerate(steps):
        write(canvas, (_left(column), MARGIN + _TOP - 28), f"step {step}", INK, 20)
    write(canvas, (_left(len(steps)), MARGIN + _TOP - 28), "the image", INK, 20)
    for row, block in enumerate(blocks):
        own = {cell.step: cell for cell in cells if cell.place == block}
        _row(canvas, MARGIN + _TOP + row * tall, [own[step] for step in steps if step in own], image)
    return canvas


def _row(canvas: Image.Image, top: int, cells: Sequence[Clustered], image: Image.Image) -> None:
    height, width = cells[0].labels.shape
    colours, block = token_colours(image, height, width), cells[0].place
    size = _CELL, round(_CELL * image.height / image.width)
    write(canvas, (MARGIN, top), f"block {block.number}", INK, 17)
    for line, text in enumerate((f"{height} x {width} tokens", block.stack.partition(".attentions")[0]), start=1):
        write(canvas, (MARGIN, top + line * 21), text, FAINT, 14)
    for column, cell in enumerate(cells):
        canvas.paste(_enlarged(recoloured(cell.labels, colours), size), (_left(column), top))
        write(canvas, (_left(column), top + size[1] + 4), f"{cell.alike:.0%}  ({cell.chance:.0%})", FAINT, 15)
    canvas.paste(_enlarged(colours, size), (_left(len(cells)), top))


def _left(column: int) -> int:
    return MARGIN + _SIDE + column * (_CELL + GAP)


def _enlarged(colours: Tensor, size: tuple[int, int]) -> Image.Image:
    """``(height, width, 3)`` in [0, 1] as sharp cells."""
    pixels = Image.fromarray((colours * 255).round().byte().numpy())
    return pixels.resize(size, Image.Resampling.NEAREST)


def token_colours(image: Image.Image, height: int, width: int) -> Tensor:
    """Mean colour of the image under every token: ``(height, width, 3)`` in [0, 1]."""
    pixels = to_pixels([image])
    pooled = torch.nn.functional.adaptive_avg_pool2d(pixels, (height, width))
    return pooled[0].permute(1, 2, 0)


def recoloured(labels: Tensor, colours: Tensor) -> Tensor:
    """Every token in the mean colour of its cluster; ``(height, width)`` and ``(height, width, 3)``."""
    members = torch.nn.functional.one_hot(labels.flatten()).to(colours.dtype)
    means = members.T @ colours.flatten(0, 1) / members.sum(0)[:, None].clamp_min(1)
    return means[labels]
