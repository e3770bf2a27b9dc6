"""Regions that share one number of destinations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import grids, local_regions, random_tokens, small_sides
from tomadiff import Grid, Stripes, Tiles, ToMA, Whole
from tomadiff.errors import SettingError, ShapeError
from tomadiff.merging.grid import Regions
from tomadiff.merging.quota import AllottedPlan, kept_in_all
from tomadiff.merging.select import cosines, greedy

SHARES = st.floats(0.05, 0.9)

shared = partial(ToMA.tile, quota="shared")


@settings(max_examples=40)
@given(grids(small_sides), local_regions(), SHARES, st.integers(1, 3), st.integers(0, 99))
def test_as_many_as_asked_for_each_once_and_none_of_them_padding(
    grid: Grid, cut: Regions, ratio: float, batch: int, seed: int
) -> None:
    tokens = random_tokens(grid, batch, 6, seed)
    plan = shared(ratio, regions=cut).plan(tokens, grid)
    assert plan.kept == max(cut.layout(grid).regions, round((1 - ratio) * grid.tokens))
    assert plan.merge(tokens).shape == (batch, plan.kept, 6)
    assert plan.unmerge(plan.merge(tokens)).shape == tokens.shape
    for row in plan.destinations.tolist():
        assert len(set(row)) == plan.kept
        assert all(0 <= place < grid.tokens for place in row)


@settings(max_examples=40)
@given(grids(small_sides), local_regions(), SHARES, st.integers(0, 99))
def test_it_covers_at_least_as_well_as_equal_numbers(grid: Grid, cut: Regions, ratio: float, seed: int) -> None:
    tokens = random_tokens(grid, 1, 6, seed)
    equal = ToMA.tile(ratio, regions=cut, quota="equal").plan(tokens, grid)
    same = ToMA.tile(1 - equal.kept / grid.tokens if equal.kept < grid.tokens else 1e-9, regions=cut, quota="shared")
    dealt = same.plan(tokens, grid)
    assert dealt.kept == equal.kept
    assert dealt.coverage >= equal.coverage - 1e-5


def test_it_is_the_greedy_choice_of_the_whole_grid_between_strangers() -> None:
    """Greedy facility location on a similarity that is zero between regions, by the plain definition."""
    grid, cut = Grid(12, 12), Tiles(4)
    tokens = random_tokens(grid, 1, 8, seed=5)
    layout = cut.layout(grid)
    home = layout.inverse // layout.length
    cosine, _ = cosines(tokens)
    similarity = (cosine + 1) / 2 * (home[:, None] == home[None, :])
    wanted = greedy(similarity, 60).indices[0]
    plan = shared(1 - 60 / 144, regions=cut).plan(tokens, grid)
    assert set(plan.destinations[0].tolist()) == set(wanted.tolist())


def test_detail_gets_what_plain_places_can_spare() -> None:
    grid = Grid(8, 16)
    tokens = torch.ones(1, 8, 16, 8) + 1e-3 * torch.randn(1, 8, 16, 8)
    tokens[:, :, 8:] = torch.randn(1, 8, 8, 8)
    tokens = tokens.view(1, -1, 8)
    equal, dealt = (ToMA.tile(0.5, quota=quota).plan(tokens, grid) for quota in ("equal", "shared"))
    detailed = [(plan.destinations % 16 >= 8).float().mean().item() for plan in (equal, dealt)]
    assert detailed[0] == 0.5
    assert detailed[1] > 0.9
    errors = [(plan.unmerge(plan.merge(tokens)) - tokens).square().mean().item() for plan in (equal, dealt)]
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.parametrize("unmerge", ["transpose", "pseudo-inverse", "least-squares"])
def test_constants_survive_and_masses_add_up(unmerge: str) -> None:
    grid = Grid(7, 9)
    tokens = random_tokens(grid, 2, 6, seed=1)
    plan = shared(0.6, unmerge=unmerge).plan(tokens, grid)
    constant = torch.full_like(tokens, 2.0)
    assert torch.allclose(plan.merge(constant), torch.tensor(2.0), atol=1e-5)
    assert torch.allclose(plan.unmerge(plan.merge(constant)), torch.tensor(2.0), atol=1e-3)
    assert torch.allclose(plan.sizes.sum(1), torch.tensor(float(grid.tokens)))


def test_least_squares_rebuilds_no_worse_than_the_transpose() -> None:
    grid = Grid(16, 16)
    tokens = random_tokens(grid, 2, 16, seed=2)
    errors = []
    for unmerge in ("transpose", "least-squares"):
        plan = shared(0.5, unmerge=unmerge).plan(tokens, grid)
        errors.append((plan.unmerge(plan.merge(tokens)) - tokens).square().sum())
    assert errors[1] < errors[0]


def test_weights_are_renewed_on_the_same_destinations() -> None:
    grid, method = Grid(8, 8), shared(0.5)
    old, new = random_tokens(grid, 2, 8, seed=1), random_tokens(grid, 2, 8, seed=2)
    plan = method.plan(old, grid)
    assert isinstance(plan, AllottedPlan)
    fresh = method.reweigh(plan, new)
    assert torch.equal(fresh.destinations, plan.destinations)
    assert not torch.allclose(fresh.merge(new), plan.merge(new))
    assert torch.allclose(method.reweigh(plan, old).merge(old), plan.merge(old), atol=1e-5)
    assert method.reweigh(plan, new.repeat(2, 1, 1)).batch == 4


def test_one_plan_serves_a_batch_that_repeats_its_samples() -> None:
    grid = Grid(8, 8)
    tokens = random_tokens(grid, 2, 8, seed=3)
    plan = shared(0.5, share="sample").plan(tokens, grid)
    twice = plan.merge(tokens.repeat(2, 1, 1))
    assert torch.equal(twice[2:], plan.merge(tokens))
    assert torch.equal(plan.unmerge(twice)[:2], plan.unmerge(plan.merge(tokens)))


def test_tokens_that_are_not_finite_stay_in_their_region() -> None:
    grid = Grid(8, 8)
    tokens = random_tokens(grid, 1, 8, seed=4)
    tokens[0, 0], tokens[0, 9] = float("nan"), float("inf")
    plan = shared(0.5).plan(tokens, grid)
    back = plan.unmerge(plan.merge(tokens)).view(8, 8, 8)
    assert {0, 9}.isdisjoint(plan.destinations[0].tolist())
    assert back[4:].isfinite().all()
    assert back[:, 4:].isfinite().all()


def test_moving_and_showing() -> None:
    grid = Grid(8, 8)
    plan = shared(0.25).plan(random_tokens(grid, 1, 8, seed=0), grid)
    half = plan.to("cpu", torch.float16)
    assert half.merge(torch.ones(1, 64, 4, dtype=torch.float16)).dtype == torch.float16
    assert "64 → 48" in repr(plan)
    assert kept_in_all(0.99, Tiles(4).layout(grid)) == 4, "every region keeps one"
    with pytest.raises(ShapeError, match="keeps 48"):
        plan.unmerge(torch.ones(1, 7, 4))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(SettingError, match="quota='equal'"):
        ToMA.tile(0.5, quota="shared", attention_regions=Whole())
    with pytest.raises(SettingError, match="quota='equal'"):
        ToMA.tile(0.5, quota="shared", selector="random")
    with pytest.raises(SettingError, match="quota"):
        ToMA.tile(0.5, quota="fair")  # type: ignore[arg-type]
    ToMA.stripe(0.5, selector="random")
    shared(0.5, regions=Stripes(16))
