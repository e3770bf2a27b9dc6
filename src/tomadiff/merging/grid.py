"""Where tokens lie: a :class:`Grid`, and the disjoint regions it is cut into.

A grid is stored in raster order: frame by frame, row by row. Regions decide which tokens may merge with which:
:class:`Whole` (all of them), :class:`Tiles` (near-square windows, in one frame or over several) and :class:`Stripes`
(runs of the raster order).
``regions.layout(grid)`` gives a :class:`Layout`, whose ``split`` and ``join`` are exact inverses for every grid size.
A grid that does not divide evenly is cut into near-equal parts; short parts are padded, and ``Layout.mask`` tells
real tokens from padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Annotated, Protocol, runtime_checkable

import torch
from torch import Tensor

from tomadiff.errors import SettingError, ShapeError, require_count
from tomadiff.utils.settings import Count, Rule, Settings


@dataclass(frozen=True)
class Grid:
    """The shape of an image's tokens: ``height`` × ``width``, for video times ``frames``."""

    height: int
    width: int
    frames: int = 1

    def __post_init__(self) -> None:
        for name in ("height", "width", "frames"):
            require_count(f"Grid.{name}", getattr(self, name))

    @property
    def tokens(self) -> int:
        """How many tokens the grid holds."""
        return self.frames * self.height * self.width

    def __str__(self) -> str:
        size = f"{self.height}×{self.width}"
        return size if self.frames == 1 else f"{self.frames}×{size}"


@dataclass(frozen=True, eq=False)
class Layout:
    """How a grid is cut into ``R`` regions of at most ``L`` tokens.

    Attributes:
        grid: the grid that is cut.
        index: ``(R, L)`` raster index of every place; padding repeats the region's last token, so that whatever
            a token holds (NaN included) never leaves its region.
        mask: ``(R, L)`` true for real tokens, false for padding.
        inverse: ``(N,)`` where each raster token lies in the flattened ``R·L`` places.
        tile: ``(frames, height, width)`` of the tiles if they cut the grid evenly, which makes ``split`` one copy.
        ordered: true if raster order and region order are the same, which makes ``split`` a view.
        smallest: real tokens in the smallest region.
    """

    grid: Grid
    index: Tensor = field(repr=False)
    mask: Tensor = field(repr=False)
    inverse: Tensor = field(repr=False)
    smallest: int
    tile: tuple[int, int, int] | None = None
    ordered: bool = False

    @property
    def regions(self) -> int:
        """Number of regions ``R``."""
        return self.index.shape[0]

    @property
    def length(self) -> int:
        """Places per region ``L``, padding included."""
        return self.index.shape[1]

    @property
    def padded(self) -> bool:
        """Whether some region is shorter than ``L``."""
        return self.regions * self.length != self.grid.tokens

    def split(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` in raster order → ``(B, R, L, C)`` by region."""
        batch, count, channels = tokens.shape
        if count != self.grid.tokens:
            raise ShapeError(f"Got {count} tokens for a grid of {self.grid} = {self.grid.tokens}.")
        if self.ordered:
            return tokens.reshape(batch, self.regions, self.length, channels)
        if self.tile is not None:
            return self._to_tiles(tokens)
        return tokens.index_select(1, self.index.flatten()).view(batch, self.regions, self.length, channels)

    def join(self, parts: Tensor) -> Tensor:
        """``(B, R, L, C)`` by region → ``(B, N, C)`` in raster order; padding is dropped."""
        batch, channels = parts.shape[0], parts.shape[-1]
        if self.ordered:
            return parts.reshape(batch, self.grid.tokens, channels)
        if self.tile is not None:
            return self._from_tiles(parts)
        return parts.reshape(batch, -1, channels).index_select(1, self.inverse)

    @cached_property
    def arranged(self) -> Layout:
        """The same regions for tokens that lie region by region already: ``split`` and ``join`` are views."""
        assert not self.padded
        places = torch.arange(self.grid.tokens, device=self.index.device)
        return replace(self, index=places.view_as(self.index), inverse=places, tile=None, ordered=True)

    def arrange(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` from raster order to region by region."""
        return self.split(tokens).flatten(1, 2)

    def restore(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` from region by region to raster order."""
        return self.join(tokens.unflatten(1, (self.regions, self.length)))

    def _to_tiles(self, tokens: Tensor) -> Tensor:
        cut = tokens.view(tokens.shape[0], *self._cuts(), -1)
        return cut.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(tokens.shape[0], self.regions, self.length, -1)

    def _from_tiles(self, parts: Tensor) -> Tensor:
        runs, frames, rows, high, columns, wide = self._cuts()
        cut = parts.view(parts.shape[0], runs, rows, columns, frames, high, wide, -1)
        return cut.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(parts.shape[0], self.grid.tokens, -1)

    def _cuts(self) -> tuple[int, ...]:
        """Along frames, height and width: how many tiles, and how many tokens in each."""
        assert self.tile is not None
        sizes = zip((self.grid.frames, self.grid.height, self.grid.width), self.tile, strict=True)
        return tuple(number for size, length in sizes for number in (size // length, length))


@runtime_checkable
class Regions(Protocol):
    """A rule that cuts any grid into disjoint regions."""

    def layout(self, grid: Grid, device: torch.device | str = "cpu") -> Layout:
        """The regions of ``grid``, with their index tensors on ``device``."""
        ...


AnyRegions = Annotated[Regions, Rule("use Tiles(4), Stripes(64) or Whole()", lambda regions: callable(regions.layout))]
"""Regions as a setting."""


@dataclass(frozen=True)
class Whole:
    """One region: every token may merge with every other."""

    def layout(self, grid: Grid, device: torch.device | str = "cpu") -> Layout:
        """See :class:`Regions`."""
        return _layout(self, grid, torch.device(device))

    def cut(self, grid: Grid) -> list[list[int]]:
        """Raster indices of each region."""
        return [list(range(grid.tokens))]


@dataclass(frozen=True)
class Stripes(Settings):
    """Runs of the raster order: ``Stripes(64)`` holds about 64 tokens each, ``Stripes(count=16)`` makes 16 of them."""

    length: Count | None = None
    count: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_one("Stripes", length=self.length, count=self.count)

    def layout(self, grid: Grid, device: torch.device | str = "cpu") -> Layout:
        """See :class:`Regions`."""
        return _layout(self, grid, torch.device(device))

    def cut(self, grid: Grid) -> list[list[int]]:
        """Raster indices of each region."""
        parts = _nearest_parts(grid.tokens, self.length) if self.length else min(self.count or 1, grid.tokens)
        return [list(range(start, stop)) for start, stop in _near_equal(grid.tokens, parts)]


@dataclass(frozen=True)
class Tiles(Settings):
    """Near-square windows: ``Tiles(4)`` are about 4×4 tokens each, ``Tiles(count=256)`` makes about 256 per frame.

    In a video each lies in one frame. Those of ``Tiles(4, frames=3)`` reach over about three frames.
    """

    side: Count | None = None
    count: Count | None = None
    frames: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_one("Tiles", side=self.side, count=self.count)

    def layout(self, grid: Grid, device: torch.device | str = "cpu") -> Layout:
        """See :class:`Regions`."""
        return _layout(self, grid, torch.device(device))

    def parts(self, grid: Grid) -> tuple[int, int, int]:
        """How many runs of frames, rows and columns of tiles ``grid`` is cut into."""
        runs = _nearest_parts(grid.frames, self.frames)
        if self.side is not None:
            return runs, _nearest_parts(grid.height, self.side), _nearest_parts(grid.width, self.side)
        return runs, *_squarest_parts(grid, self.count or 1)

    def cut(self, grid: Grid) -> list[list[int]]:
        """Raster indices of each region."""
        runs, rows, columns = self.parts(grid)
        return [
            [
                (frame * grid.height + y) * grid.width + x
                for frame in range(*run)
                for y in range(*band)
                for x in range(*column)
            ]
            for run in _near_equal(grid.frames, runs)
            for band in _near_equal(grid.height, rows)
            for column in _near_equal(grid.width, columns)
        ]


@dataclass(frozen=True)
class ByRegion:
    """The same regions for tokens that already lie region by region: cutting them copies nothing."""

    regions: Regions

    def layout(self, grid: Grid, device: torch.device | str = "cpu") -> Layout:
        """See :class:`Regions`."""
        return self.regions.layout(grid, device).arranged


def _require_one(kind: str, **given: int | None) -> None:
    """Exactly one of the two ways to say how large regions are."""
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        options = " or ".join(f"{kind}({name}=…)" for name in given)
        raise SettingError(f"{kind} takes exactly one size, got {named or 'none'}; write {options}.")


def _nearest_parts(total: int, size: int) -> int:
    """How many near-equal parts come closest to ``size`` each."""
    return max(1, math.floor(total / size + 0.5))


def _near_equal(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``range(total)`` into ``parts`` runs whose lengths differ by at most one."""
    edges = [total * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def _squarest_parts(grid: Grid, count: int) -> tuple[int, int]:
    """Rows × columns near ``count`` whose tiles are near-square; the count matters twice as much."""

    def misfit(parts: tuple[int, int]) -> float:
        rows, columns = parts
        aspect = (grid.height / rows) / (grid.width / columns)
        return 2 * abs(math.log(rows * columns / count)) + abs(math.log(aspect))

    return min(
        (
            (rows, min(grid.width, max(1, columns)))
            for rows in range(1, grid.height + 1)
            for columns in (count // rows, -(-count // rows))
        ),
        key=misfit,
    )


@lru_cache(maxsize=64)
def _layout(regions: Whole | Tiles | Stripes, grid: Grid, device: torch.device) -> Layout:
    """Build and remember a layout: a model asks for the same few again and again."""
    cut = regions.cut(grid)
    longest = max(map(len, cut))
    index = torch.tensor([part + part[-1:] * (longest - len(part)) for part in cut])
    mask = torch.arange(longest) < torch.tensor([len(part) for part in cut])[:, None]
    inverse = torch.empty(grid.tokens, dtype=torch.long)
    inverse[index[mask]] = torch.arange(index.numel()).view_as(index)[mask]
    even = bool(mask.all())
    ordered = even and bool((inverse == torch.arange(grid.tokens)).all())
    return Layout(
        grid=grid,
        index=index.to(device),
        mask=mask.to(device),
        inverse=inverse.to(device),
        smallest=min(map(len, cut)),
        tile=_tile_size(regions, grid) if even and not ordered else None,
        ordered=ordered,
    )


def _tile_size(regions: Whole | Tiles | Stripes, grid: Grid) -> tuple[int, int, int] | None:
    """Frames, height and width of every tile, for tiles that cut the grid evenly."""
    if not isinstance(regions, Tiles):
        return None
    runs, rows, columns = regions.parts(grid)
    return grid.frames // runs, grid.height // rows, grid.width // columns
