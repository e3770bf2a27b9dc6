"""Merging where diffusers splits the tokens of one image over several processes (``ContextParallelConfig``).

Every process holds a run of rows (of frames, for video) and exchanges keys and values inside attention. Plans keep to
regions, so where no region lies in two processes, each plans and merges its own tokens and the image is that of one
process. Anything else raises before it is computed, in all processes alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tomadiff.engine.outer_hooks import context_parallel
from tomadiff.errors import PatchError
from tomadiff.merging.grid import Grid
from tomadiff.methods.base import Method


def processes(model: Any) -> int:
    """How many processes hold the tokens of one image."""
    config = context_parallel(model)
    return 1 if config is None else int(config.ring_degree * config.ulysses_degree)


def own_part(grid: Grid, method: Method, parts: int, others: int = 0) -> Grid:
    """The grid of the tokens that one of ``parts`` processes holds; ``others`` go with them in a sequence."""
    regions: Any = method.local_regions
    if regions is None:
        raise PatchError(
            f"Context parallelism splits the image over {parts} processes, and {method!r} looks at all of it. Take "
            "ToMA with quota='equal', proportional=False and regions of its own, or remove the patch."
        )
    if others:
        raise PatchError(
            "Reference images, and text in one sequence with the image, cannot be merged under context parallelism; "
            "remove the patch."
        )
    part = _part(grid, parts)
    if part is None or not _keeps_to_parts(regions, grid, part):
        raise PatchError(
            f"{parts} processes would cut {regions!r} on a {grid} grid of tokens apart; choose a height whose rows of "
            f"tokens are a multiple of {parts} times the region's height, or remove the patch."
        )
    return part


def _part(grid: Grid, parts: int) -> Grid | None:
    if grid.frames == 1:
        return None if grid.height % parts else Grid(grid.height // parts, grid.width)
    return None if grid.frames % parts else Grid(grid.height, grid.width, grid.frames // parts)


@lru_cache(maxsize=64)
def _keeps_to_parts(regions: Any, whole: Grid, part: Grid) -> bool:
    """Whether the regions of the whole grid are those of its parts, one after the other."""
    own, count = regions.layout(part), whole.tokens // part.tokens
    expected = torch.cat([own.index + number * part.tokens for number in range(count)])
    found = regions.layout(whole)
    return torch.equal(found.index, expected) and torch.equal(found.mask, own.mask.repeat(count, 1))
