"""Properties of plans, drawn over grids up to 97×97, all regions, ratios, dtypes and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies import DTYPES, grids, local_regions, random_tokens, regions, small_sides
from tomadiff import Grid, MergePlan, Stripes, Tiles, ToMA, Whole
from tomadiff.errors import SettingError, ShapeError
from tomadiff.merging.grid import Regions
from tomadiff.merging.unmerge import UNMERGES
from tomadiff.merging.weights import TEMPERATURE, kept_per_region, weigh

ratios = st.one_of(st.floats(0.01, 0.97), st.sampled_from([0.25, 0.5, 0.75]))
batches = st.integers(1, 3)

# regions that share a number: test_allotment.py
toma = partial(ToMA, quota="equal")
paper = partial(ToMA.tile, quota="equal")
methods = st.sampled_from([toma, paper])


@st.composite
def grids_with_regions(draw: st.DrawFn) -> tuple[Grid, Regions]:
    """Any grid up to 97×97; where a region may span a large grid, greedy selection would take minutes."""
    if draw(st.booleans()):
        return draw(grids(small_sides)), draw(regions())
    grid, cut = draw(grids()), draw(local_regions())
    assume(cut.layout(grid).length <= 160)
    return grid, cut


@settings(max_examples=60)
@given(grids_with_regions(), methods, ratios, batches, st.sampled_from(DTYPES), st.integers(0, 99))
def test_weights_sum_to_one_and_constants_survive(
    where: tuple[Grid, Regions], method: Callable[..., ToMA], ratio: float, batch: int, dtype: torch.dtype, seed: int
) -> None:
    grid, cut = where
    tokens = random_tokens(grid, batch, 6, seed, dtype)
    plan = method(ratio, regions=cut).plan(tokens, grid)
    rounding = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    columns = plan.unmerge_matrix.float().sum(-1)[:, plan.layout.mask]
    assert torch.allclose(columns, torch.ones_like(columns), atol=rounding)
    constant = torch.full_like(tokens, 2.0)
    assert torch.allclose(plan.merge(constant).float(), torch.tensor(2.0), atol=2 * rounding)
    assert torch.allclose(plan.unmerge(plan.merge(constant)).float(), torch.tensor(2.0), atol=6 * rounding)
    assert plan.merge(tokens).dtype == dtype
    assert torch.allclose(plan.sizes.float().sum(1), torch.tensor(float(grid.tokens)), rtol=2 * rounding)


@settings(max_examples=60)
@given(grids_with_regions(), methods, ratios, batches)
def test_shapes_and_realised_ratio(
    where: tuple[Grid, Regions], method: Callable[..., ToMA], ratio: float, batch: int
) -> None:
    grid, cut = where
    tokens = random_tokens(grid, batch, 4, 3)
    plan = method(ratio, regions=cut).plan(tokens, grid)
    layout = cut.layout(grid)
    assert plan.kept == layout.regions * kept_per_region(ratio, layout) <= grid.tokens
    assert plan.merge(tokens).shape == (batch, plan.kept, 4)
    assert plan.unmerge(plan.merge(tokens)).shape == tokens.shape
    assert plan.realised_ratio == pytest.approx(1 - plan.kept / grid.tokens)
    assert plan.destinations.shape == (batch, plan.kept)
    assert all(len(set(row)) == plan.kept for row in plan.destinations.tolist())
    assert ((plan.coverage > 0) & (plan.coverage <= 1 + 1e-6)).all()


@settings(max_examples=40)
@given(grids(small_sides), regions(), methods, st.integers(0, 99))
def test_every_token_a_destination_is_the_identity(
    grid: Grid, cut: Regions, method: Callable[..., ToMA], seed: int
) -> None:
    """Where regions are equal and every token stays, and no two tokens are too alike for the temperature."""
    layout = cut.layout(grid)
    assume(not layout.padded)
    tokens = random_tokens(grid, 2, 64, seed)
    unit = torch.nn.functional.normalize(tokens, dim=-1)
    alike = (unit @ unit.transpose(1, 2) - 2 * torch.eye(grid.tokens)).amax()
    assume(alike < 1 - 20 * TEMPERATURE)
    plan = method(1e-9, regions=cut).plan(tokens, grid)
    assert plan.kept == grid.tokens
    assert torch.allclose(plan.unmerge(plan.merge(tokens)), tokens, atol=1e-4)


@settings(max_examples=40)
@given(grids_with_regions(), ratios, st.integers(0, 99))
def test_cold_merge_is_the_mean_of_each_cluster(where: tuple[Grid, Regions], ratio: float, seed: int) -> None:
    """At low temperature: plain averages, and the transpose copies them back."""
    grid, cut = where
    tokens = random_tokens(grid, 1, 32, seed)
    plan = weigh(tokens, paper(ratio, regions=cut).plan(tokens, grid).chosen, temperature=1e-6)
    assert isinstance(plan, MergePlan)
    home = _nearest_destination(tokens[0], plan)
    assume(home is not None)
    assert home is not None
    merged = plan.merge(tokens)[0]
    sums = torch.zeros(plan.kept, 32).index_add_(0, home, tokens[0])
    sizes = torch.bincount(home, minlength=plan.kept)
    assert torch.allclose(merged, sums / sizes[:, None], atol=1e-4)
    assert torch.equal(plan.sizes[0].round().long(), sizes)
    assert torch.allclose(plan.unmerge(merged[None])[0], merged[home], atol=1e-5)


def _nearest_destination(tokens: Tensor, plan: MergePlan) -> Tensor | None:
    """``(N,)`` merged index nearest to each token inside its region, by brute force; None if some two tie."""
    layout, unit = plan.layout, torch.nn.functional.normalize(tokens.double(), dim=-1)
    region_of = layout.inverse // layout.length
    destinations = plan.destinations[0]
    cosine = unit @ unit[destinations].T
    cosine[region_of[:, None] != region_of[destinations][None]] = -2
    if plan.per_region > 1:
        first, second = cosine.topk(2).values.unbind(-1)
        if (first - second).min() < 1e-4:
            return None
    return cosine.argmax(-1)


@settings(max_examples=40)
@given(grids_with_regions(), ratios, st.integers(0, 99))
def test_samples_do_not_see_each_other(where: tuple[Grid, Regions], ratio: float, seed: int) -> None:
    """share="sample": permuted samples give permuted plans, and a sample alone gives the same plan."""
    grid, cut = where
    tokens = random_tokens(grid, 3, 8, seed)
    method = paper(ratio, regions=cut, share="sample")
    plan, order = method.plan(tokens, grid), [2, 0, 1]
    permuted = method.plan(tokens[order], grid)
    alone = method.plan(tokens[1:2], grid)
    if torch.equal(permuted.destinations, plan.destinations[order]):  # else two gains were equal to the last bit
        assert torch.allclose(permuted.merge_matrix, plan.merge_matrix[order], atol=1e-4)
    assert torch.allclose(permuted.coverage, plan.coverage[order], atol=1e-4)
    assert torch.allclose(alone.coverage, plan.coverage[1:2], atol=1e-4)
    if torch.equal(alone.destinations[0], plan.destinations[1]):
        assert torch.allclose(alone.merge_matrix[0], plan.merge_matrix[1], atol=1e-4)


# ------------------------------------------------------------------------------ regions that differ, sharing
def test_whole_attention_reaches_over_tiles() -> None:
    """A token whose like is a destination of another tile merges there: the paper's plain ToMA."""
    grid, generator = Grid(8, 8), torch.Generator().manual_seed(0)
    tokens = torch.randn(1, 64, 16, generator=generator)
    method = paper(0.5, regions=Tiles(4), attention_regions=Whole())
    plan = method.plan(tokens, grid)
    local = paper(0.5, regions=Tiles(4)).plan(tokens, grid)
    assert sorted(plan.destinations[0].tolist()) == sorted(local.destinations[0].tolist())
    assert plan.merge_matrix.shape == (1, 1, 32, 64)
    assert plan.coverage > local.coverage
    own = plan.merge_matrix[0, 0].gather(1, plan.destinations[0][:, None])
    assert (own > 0.01).all(), "a destination is part of what it stands for"


def test_attention_regions_may_hold_several_selection_regions() -> None:
    tokens = torch.randn(2, 64, 8)
    plan = toma(0.5, regions=Tiles(2), attention_regions=Tiles(4)).plan(tokens, Grid(8, 8))
    assert plan.merge_matrix.shape == (2, 4, 8, 16)
    full = toma(1e-9, regions=Tiles(2), attention_regions=Tiles(4)).plan(tokens, Grid(8, 8))
    assert torch.allclose(full.unmerge(full.merge(tokens)), tokens, atol=1e-4)


def test_attention_regions_that_cut_selection_regions() -> None:
    with pytest.raises(SettingError, match="attention_regions=Whole"):
        toma(0.5, regions=Tiles(4), attention_regions=Stripes(8)).plan(torch.randn(1, 64, 4), Grid(8, 8))


@pytest.mark.parametrize("method", [toma, paper], ids=["ours", "paper"])
def test_who_shares_destinations(method: Callable[..., ToMA]) -> None:
    tokens, grid = torch.randn(4, 64, 8), Grid(8, 8)
    chosen = {
        share: method(0.5, share=share).plan(tokens, grid, passes=2).destinations
        for share in ("sample", "prompt", "batch")
    }
    assert not torch.equal(chosen["sample"][0], chosen["sample"][2])
    assert torch.equal(chosen["prompt"][0], chosen["prompt"][2]), "sample 0 unguided and guided"
    assert not torch.equal(chosen["prompt"][0], chosen["prompt"][1])
    assert (chosen["batch"] == chosen["batch"][:1]).all()
    weights = method(0.5, share="batch").plan(tokens, grid).unmerge_matrix
    assert not torch.allclose(weights[0], weights[1]), "weights stay each sample's own"
    with pytest.raises(ShapeError, match="2 guidance passes"):
        method(0.5).plan(tokens[:3], grid, passes=2)


def test_shared_selection_maximises_the_mean() -> None:
    """Sharing averages the similarities: the same as facility location on the mean matrix."""
    from tomadiff.merging.select import cosines, facility_location

    tokens = torch.randn(2, 16, 8)
    plan = paper(0.5, share="batch", regions=Whole()).plan(tokens, Grid(4, 4))
    mean = ((cosines(tokens)[0] + 1) / 2).mean(0, keepdim=True)
    value = facility_location(similarity=mean, count=8).gains.sum().item()
    reached = mean[0][:, plan.destinations[0]].amax(-1).sum().item()
    assert reached == pytest.approx(value, abs=1e-4), "picks may differ where two tokens are each other's nearest"


# ------------------------------------------------------------------------------ using a plan
def test_pick_rows_of_positional_tables() -> None:
    tokens, grid = torch.randn(2, 64, 8), Grid(8, 8)
    table = torch.arange(64.0)[:, None].repeat(1, 3)
    shared = toma(0.5, share="batch").plan(tokens, grid)
    assert torch.equal(shared.gather(table)[:, 0].long(), shared.destinations[0])
    own = toma(0.5, share="sample").plan(tokens, grid)
    batched = table[None, :, None]
    assert own.gather(batched, dim=1).shape == (2, 32, 1, 3)
    assert torch.equal(own.gather(batched, dim=1)[:, :, 0, 0].long(), own.destinations)
    with pytest.raises(SettingError, match="share='batch'"):
        own.gather(table)
    with pytest.raises(ShapeError, match="63 rows"):
        shared.gather(table[:63])


def test_plans_move_and_describe_themselves() -> None:
    plan = toma(0.5).plan(torch.randn(1, 64, 8), Grid(8, 8))
    half = plan.to(dtype=torch.bfloat16)
    assert half.merge_matrix.dtype == torch.bfloat16
    assert half.nbytes < plan.nbytes
    assert half.merge(torch.randn(1, 64, 8).bfloat16()).dtype == torch.bfloat16
    text = repr(plan)
    assert "8×8 tokens: 64 → 32 (50.0% merged away)" in text
    assert "coverage" in text


@pytest.mark.parametrize("method", [toma, paper], ids=["ours", "paper"])
def test_a_plan_serves_batches_that_repeat_its_samples(method: Callable[..., ToMA]) -> None:
    tokens = torch.randn(2, 16, 4)
    plan = method(0.5, share="sample").plan(tokens, Grid(4, 4))
    twice = plan.merge(tokens.repeat(2, 1, 1))
    assert torch.allclose(twice[2:], plan.merge(tokens))
    assert method(0.5).reweigh(plan, tokens.repeat(2, 1, 1)).merge_matrix.shape[0] == 4
    with pytest.raises(ShapeError, match="batch of 3"):
        plan.merge(torch.randn(3, 16, 4))
    with pytest.raises(ShapeError, match="keeps 8"):
        plan.unmerge(torch.randn(2, 9, 4))


def test_identity_is_bit_exact() -> None:
    tokens = torch.randn(3, 35, 4)
    plan = MergePlan.identity(Grid(5, 7))
    assert torch.equal(plan.merge(tokens), tokens)
    assert torch.equal(plan.unmerge(tokens), tokens)
    assert plan.realised_ratio == 0
    assert toma(0).plan(tokens, Grid(5, 7)).kept == 35


# ------------------------------------------------------------------------------ broken input
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("unmerge", UNMERGES)
@pytest.mark.parametrize("method", [toma, paper], ids=["ours", "paper"])
def test_broken_tokens_poison_only_their_own_region(bad: float, unmerge: str, method: Callable[..., ToMA]) -> None:
    grid, tokens = Grid(9, 9), torch.randn(2, 81, 8)
    tokens[0, 0, 3] = bad
    plan = method(0.5, regions=Tiles(3), unmerge=unmerge, share="sample").plan(tokens, grid)
    assert plan.merge_matrix.isfinite().all()
    assert plan.unmerge_matrix.isfinite().all()
    assert 0 not in plan.destinations[0].tolist()
    back = plan.unmerge(plan.merge(tokens))
    first_tile = [row * 9 + column for row in range(3) for column in range(3)]
    others = [token for token in range(81) if token not in first_tile]
    assert back[0, others].isfinite().all()
    assert back[1].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [0.0, float("nan"), 1e4])
@pytest.mark.parametrize("method", [toma, paper], ids=["ours", "paper"])
def test_uniform_and_hopeless_grids_do_not_crash(dtype: torch.dtype, fill: float, method: Callable[..., ToMA]) -> None:
    tokens = torch.full((1, 35, 4), fill, dtype=dtype)
    for cut in (Whole(), Tiles(2), Stripes(6)):
        plan = method(0.5, regions=cut).plan(tokens, Grid(5, 7))
        assert plan.merge_matrix.isfinite().all()
        assert torch.allclose(plan.merge(torch.ones_like(tokens)).float(), torch.tensor(1.0), atol=3e-2)
