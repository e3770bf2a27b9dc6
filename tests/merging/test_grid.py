from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import DTYPES, grids, random_tokens, regions, videos
from tomadiff import Grid, Stripes, Tiles, Whole
from tomadiff.errors import SettingError, ShapeError
from tomadiff.merging.grid import Regions


@given(grids() | videos(), regions(), st.integers(1, 3), st.sampled_from(DTYPES))
def test_join_undoes_split(grid: Grid, cut: Regions, batch: int, dtype: torch.dtype) -> None:
    tokens = random_tokens(grid, batch, 3, seed=1, dtype=dtype)
    layout = cut.layout(grid)
    parts = layout.split(tokens)
    assert parts.shape == (batch, layout.regions, layout.length, 3)
    assert torch.equal(layout.join(parts), tokens)


@given(grids() | videos(), regions())
def test_every_token_has_exactly_one_place(grid: Grid, cut: Regions) -> None:
    layout = cut.layout(grid)
    assert layout.index[layout.mask].sort().values.tolist() == list(range(grid.tokens))
    assert layout.mask.sum(-1).min() == layout.smallest >= 1


@given(grids() | videos(), regions())
def test_split_agrees_with_the_index(grid: Grid, cut: Regions) -> None:
    """The fast paths (views, reshapes) say the same as the index that defines a layout."""
    layout = cut.layout(grid)
    raster = torch.arange(grid.tokens, dtype=torch.float32).view(1, -1, 1)
    assert torch.equal(layout.split(raster)[0, ..., 0].long(), layout.index)


@given(grids(), st.integers(1, 12))
def test_tiles_are_near_equal_and_near_square(grid: Grid, side: int) -> None:
    layout = Tiles(side).layout(grid)
    for part, real in zip(layout.index, layout.mask, strict=True):
        rows, columns = part[real] // grid.width, part[real] % grid.width
        high, wide = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
        assert high * wide == int(real.sum()), "a tile is a full rectangle"
        for extent, axis in ((high, grid.height), (wide, grid.width)):
            assert extent <= max(1.5 * side, 1)
            assert extent >= min(axis, side / 1.5) - 1


def test_the_papers_tiles() -> None:
    """256 tiles on 4096 tokens are 4×4 tokens each, said either way."""
    grid = Grid(64, 64)
    by_side, by_count = Tiles(4).layout(grid), Tiles(count=256).layout(grid)
    assert (by_side.regions, by_side.length, by_side.tile) == (256, 16, (1, 4, 4))
    assert torch.equal(by_side.index, by_count.index)


def test_stripes_are_views() -> None:
    tokens = torch.randn(2, 4096, 8)
    parts = Stripes(64).layout(Grid(64, 64)).split(tokens)
    assert parts.data_ptr() == tokens.data_ptr()
    assert torch.equal(parts[:, 3], tokens[:, 192:256])


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 97), (97, 1), (3, 3), (5, 89)])
def test_grids_smaller_than_a_tile_or_one_row(height: int, width: int) -> None:
    for cut in (Tiles(8), Tiles(count=256), Stripes(64), Stripes(count=500), Whole()):
        layout = cut.layout(Grid(height, width))
        tokens = torch.randn(1, height * width, 2)
        assert torch.equal(layout.join(layout.split(tokens)), tokens)


def test_video_grids_keep_frames_apart() -> None:
    grid = Grid(4, 6, frames=3)
    layout = Tiles(2).layout(grid)
    assert layout.regions == 3 * 2 * 3
    frames = layout.index // (grid.height * grid.width)
    assert (frames == frames[:, :1]).all()
    tokens = torch.randn(2, grid.tokens, 5)
    assert torch.equal(layout.join(layout.split(tokens)), tokens)
    uneven = Tiles(2).layout(Grid(5, 7, frames=2))
    assert torch.equal(uneven.join(uneven.split(torch.ones(1, 70, 1))), torch.ones(1, 70, 1))


def test_tiles_over_frames_hold_the_same_window_of_each() -> None:
    layout = Tiles(2, frames=3).layout(Grid(4, 6, frames=6))
    assert (layout.regions, layout.length, layout.tile) == (2 * 2 * 3, 12, (3, 2, 2))
    assert layout.index[4].tolist() == [frame * 24 + place for frame in range(3) for place in (14, 15, 20, 21)]
    assert Tiles(2, frames=4).layout(Grid(4, 6, frames=6)).regions == 2 * 2 * 3, "six frames are two runs of three"


def test_images_have_no_frames_to_reach_over() -> None:
    assert torch.equal(Tiles(4, frames=3).layout(Grid(9, 16)).index, Tiles(4).layout(Grid(9, 16)).index)


def test_padding_repeats_a_token_of_its_own_region() -> None:
    layout = Tiles(2).layout(Grid(5, 5))
    assert layout.padded
    for part, real in zip(layout.index, layout.mask, strict=True):
        assert set(part[~real].tolist()) <= set(part[real].tolist())


def test_names_of_grids() -> None:
    assert str(Grid(8, 6)) == "8×6"
    assert str(Grid(8, 6, frames=5)) == "5×8×6"


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Grid(0, 4), "at least 1"),
        (lambda: Grid(4, 2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Tiles(), "exactly one size"),
        (lambda: Tiles(4, count=16), "exactly one size"),
        (lambda: Tiles(0), "at least 1"),
        (lambda: Tiles(4, frames=0), "at least 1"),
        (lambda: Stripes(count=True), "whole number"),
    ],
)
def test_bad_sizes_say_what_is_possible(make: object, hint: str) -> None:
    with pytest.raises(SettingError, match=hint):
        make()  # type: ignore[operator]


def test_tokens_that_do_not_fit_the_grid() -> None:
    with pytest.raises(ShapeError, match="Got 10 tokens for a grid of 4×4 = 16"):
        Whole().layout(Grid(4, 4)).split(torch.randn(1, 10, 2))
