from collections import Counter
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from tomadiff import Grid, Stripes, Tiles, ToMA
from tomadiff.errors import SettingError
from tomadiff.merging.grid import Regions
from tomadiff.merging.plan import MergePlan, by_group, group_count
from tomadiff.merging.quota import AllottedPlan
from tomadiff.merging.select import FacilityLocation, cosines
from tomadiff.merging.unmerge import Unmerge

# How far a number may be off that is about one; the interpreter cuts bfloat16 off where torch rounds.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 2**-6}
CASES = [  # regions of 9, 16, 25 and 64 tokens, and some that grids cut unevenly
    (Grid(3, 6), Tiles(3)),
    (Grid(4, 8), Tiles(4)),
    (Grid(5, 5), Tiles(5)),
    (Grid(8, 8), Tiles(8)),
    (Grid(7, 9), Tiles(4)),
    (Grid(2, 24), Stripes(16)),
]


def check(tokens: Tensor, grid: Grid, ratio: float = 0.5, passes: int = 1, **settings: object) -> MergePlan:
    """The kernel chooses by the same gains as plain torch, and weighs its own destinations as plain torch does."""
    fast, slow = (ToMA(ratio, kernels=way, **settings) for way in ("triton", "torch"))
    plan, other = (method.plan(tokens, grid, passes=passes) for method in (fast, slow))
    assert (plan.fused, other.fused, plan.shared) == (True, False, other.shared)
    assert plan.local_index.shape == other.local_index.shape
    assert_greedy(plan, tokens, group_count(len(tokens), fast.share, passes))
    assert_weighed(plan, slow.reweigh(plan, tokens))
    return plan


def check_shared(tokens: Tensor, grid: Grid, ratio: float = 0.5, passes: int = 1, **settings: Any) -> AllottedPlan:
    """The same where regions share one number: theirs are the places that add most, and others get no weight."""
    fast, slow = (ToMA(ratio, quota="shared", kernels=way, **settings) for way in ("triton", "torch"))
    plan, other = (method.plan(tokens, grid, passes=passes) for method in (fast, slow))
    assert isinstance(plan, AllottedPlan)
    assert isinstance(other, AllottedPlan)
    assert (plan.whole.fused, plan.shared, plan.rows.shape) == (True, other.shared, other.rows.shape)
    groups = group_count(len(tokens), fast.share, passes)
    assert_greedy(plan.whole, tokens, groups)
    assert_weighed(plan.whole, slow.reweigh(plan, tokens).whole)
    quotas = [Counter((rows // plan.layout.length).tolist()) for rows in (*plan.rows, *other.rows)]
    assert quotas[: len(plan.rows)] == quotas[len(plan.rows) :]
    assert len({quota for own in quotas for quota in own.values()}) > 1, "regions keep different numbers"
    assert torch.equal(fast.reweigh(plan, tokens).whole.merge_matrix, plan.whole.merge_matrix)
    assert_merged(plan, tokens.nan_to_num())
    return plan


def assert_merged(fast: AllottedPlan, tokens: Tensor) -> None:
    """Kernels read and write the merged tokens of regions that keep different numbers."""
    slow = replace(fast, whole=replace(fast.whole, fused=False))
    merged, tolerance = slow.merge(tokens), 4 * TOLERANCE[tokens.dtype]  # tokens are about four
    pairs = ((fast.merge(tokens), merged), (fast.unmerge_add(merged, tokens), slow.unmerge_add(merged, tokens)))
    for mine, expected in (*pairs, (fast.unmerge(merged), slow.unmerge(merged))):
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def assert_greedy(plan: MergePlan, tokens: Tensor, groups: int) -> None:
    """Every choice adds as much as the best one; two tokens that only stand for each other tie, and either may win."""
    cosine, usable = cosines(plan.layout.split(tokens))
    similarity = (by_group(cosine, groups).mean(0) + 1) / 2
    counts = by_group(usable & plan.layout.mask, groups).all(0)
    similarity = (similarity * counts[..., None, :] * counts[..., None]).flatten(0, 1)
    objective, bar = FacilityLocation(), torch.where(counts.flatten(0, 1), 0.0, -1e30)
    objective.start(similarity)
    for picked in plan.local_index[:groups].flatten(0, 1).unbind(-1):
        gains = objective.gains() + bar
        own = gains.gather(1, picked[:, None])[:, 0]
        assert (gains.amax(-1) - own <= 1e-5).all()
        bar.scatter_(1, picked[:, None], float("-inf"))
        objective.add(picked)


def assert_weighed(fast: MergePlan, slow: MergePlan) -> None:
    assert torch.equal(fast.local_index, slow.local_index)
    real = fast.layout.mask
    for mine, expected in (
        (fast.merge_matrix * real[:, None], slow.merge_matrix * real[:, None]),
        (fast.unmerge_matrix * real[..., None], slow.unmerge_matrix * real[..., None]),
        (fast.sizes, slow.sizes),
        (fast.coverage, slow.coverage),
    ):
        assert mine.dtype == expected.dtype
        tolerance = TOLERANCE[fast.merge_matrix.dtype]
        torch.testing.assert_close(mine.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("grid", "regions", "ratio"), [(*case, ratio) for case, ratio in zip(CASES, cycle((0.25, 0.5, 0.8)))], ids=str
)
def test_it_plans_as_plain_torch_does(grid: Grid, regions: Regions, ratio: float) -> None:
    torch.manual_seed(0)
    check(torch.randn(1, grid.tokens, 72), grid, ratio, regions=regions)


@pytest.mark.parametrize(
    ("dtype", "unmerge"),
    [*((dtype, "least-squares") for dtype in TOLERANCE), (torch.float16, "transpose")],
    ids=str,
)
def test_every_dtype_is_planned_in_float32(dtype: torch.dtype, unmerge: str) -> None:
    torch.manual_seed(1)
    check(torch.randn(2, 63, 36).to(dtype), Grid(7, 9), unmerge=unmerge)


@pytest.mark.parametrize(("share", "passes"), [("sample", 1), ("prompt", 2), ("batch", 1)])
def test_samples_share_destinations_as_they_should(share: str, passes: int) -> None:
    torch.manual_seed(2)
    tokens = torch.randn(4, 32, 12) * torch.tensor([1.0, 5.0, 2.0, 0.5])[:, None, None]
    plan = check(tokens, Grid(4, 8), passes=passes, share=share)
    alike = {"sample": [], "prompt": [(0, 2), (1, 3)], "batch": [(0, 1), (0, 2), (0, 3)]}[share]
    assert all(torch.equal(plan.local_index[one], plan.local_index[other]) for one, other in alike)


@pytest.mark.parametrize("unmerge", ["least-squares", "transpose"])
@pytest.mark.parametrize(("grid", "regions"), CASES[1:2] + CASES[4:5], ids=str)
def test_regions_share_one_number(grid: Grid, regions: Regions, unmerge: Unmerge) -> None:
    torch.manual_seed(6)
    tokens = torch.randn(1, grid.tokens, 24)
    tokens[:, : grid.tokens // 2] += 4
    check_shared(tokens, grid, regions=regions, unmerge=unmerge)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_regions_and_samples_share(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    tokens = torch.randn(2, 32, 12)
    tokens[:, :20] += 4
    tokens[0, 9] = float("nan")
    plan = check_shared(tokens.to(dtype), Grid(4, 8), passes=2)
    assert torch.equal(plan.rows[0], plan.rows[1])
    assert plan.whole.unmerge_matrix.isfinite().all()


def test_destinations_that_are_kept_are_weighed_anew() -> None:
    torch.manual_seed(3)
    first, later = torch.randn(2, 2, 32, 12)
    fast, slow = (ToMA(0.5, kernels=way) for way in ("triton", "torch"))
    plan = slow.plan(first, Grid(4, 8))
    assert_weighed(fast.reweigh(plan, later), slow.reweigh(plan, later))


def test_rows_may_lie_apart() -> None:
    torch.manual_seed(4)
    check(torch.randn(2, 40, 24)[:, :32, :12], Grid(4, 8))


@pytest.mark.parametrize("kind", ["zero", "equal", "duplicates", "nan", "infinite", "huge"])
def test_odd_tokens_are_planned_for_as_by_plain_torch(kind: str) -> None:
    torch.manual_seed(5)
    tokens = torch.randn(1, 32, 12)
    if kind == "zero":
        tokens[:] = 0
    elif kind == "equal":
        tokens[:] = 1.0
    elif kind == "duplicates":
        tokens[:, 16:] = tokens[:, :16]
    else:
        tokens[0, 5] = {"nan": float("nan"), "infinite": float("inf"), "huge": 1e30}[kind]
    plan = check(tokens, Grid(4, 8))
    assert plan.unmerge_matrix.isfinite().all()
    assert all(len(set(row)) == len(row) for row in plan.destinations.tolist())


def test_longer_regions_are_left_to_plain_torch() -> None:
    tokens, grid = torch.randn(1, 100, 8), Grid(10, 10)
    method = ToMA(0.5, regions=Stripes(100), unmerge="transpose", kernels="triton")
    with pytest.raises(SettingError, match="more than 64 tokens"):
        method.plan(tokens, grid)
    assert method.changed({"kernels": "auto"}).plan(tokens, grid).destinations.shape[-1] == 50
