import pytest
import torch
from torch import Tensor

from tomadiff import Grid, Stripes, Tiles, ToMA
from tomadiff.errors import SettingError
from tomadiff.grid import Regions
from tomadiff.plan import PickPlan

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


def both(tokens: Tensor, grid: Grid, ratio: float = 0.5, passes: int = 1, **settings: object) -> list[PickPlan]:
    """The plan by the kernel, and by its definition."""
    methods = (ToMA(ratio, kernels=way, **settings) for way in ("triton", "torch"))
    return [method.plan(tokens, grid, passes=passes) for method in methods]


def assert_same(fast: PickPlan, slow: PickPlan, dtype: torch.dtype = torch.float32) -> None:
    assert type(fast) is type(slow) is PickPlan
    assert (fast.fused, slow.fused, fast.shared) == (True, False, slow.shared)
    assert torch.equal(fast.places, slow.places)
    assert torch.equal(fast.merge_matrix, slow.merge_matrix)
    real = fast.layout.mask[None, :, :, None]
    for mine, expected in (
        (fast.unmerge_matrix * real, slow.unmerge_matrix * real),
        (fast.mass, slow.mass),
        (fast.coverage, slow.coverage),
    ):
        assert mine.dtype == expected.dtype
        torch.testing.assert_close(mine.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8])
@pytest.mark.parametrize(("grid", "regions"), CASES, ids=str)
def test_it_plans_as_plain_torch_does(grid: Grid, regions: Regions, ratio: float) -> None:
    torch.manual_seed(0)
    assert_same(*both(torch.randn(1, grid.tokens, 72), grid, ratio, regions=regions))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_every_dtype_is_planned_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    assert_same(*both(torch.randn(2, 63, 36).to(dtype), Grid(7, 9)), dtype)


@pytest.mark.parametrize(("share", "passes"), [("sample", 1), ("prompt", 2), ("batch", 1)])
def test_samples_share_destinations_as_they_should(share: str, passes: int) -> None:
    torch.manual_seed(2)
    tokens = torch.randn(4, 32, 12) * torch.tensor([1.0, 5.0, 2.0, 0.5])[:, None, None]
    assert_same(*both(tokens, Grid(4, 8), passes=passes, share=share))


def test_destinations_that_are_kept_are_weighed_anew() -> None:
    torch.manual_seed(3)
    first, later = torch.randn(2, 2, 32, 12)
    fast, slow = (ToMA(0.5, kernels=way) for way in ("triton", "torch"))
    plan = slow.plan(first, Grid(4, 8))
    assert_same(fast.reweigh(plan, later), slow.reweigh(plan, later))


def test_rows_may_lie_apart() -> None:
    torch.manual_seed(4)
    wide = torch.randn(2, 40, 24)
    assert_same(*both(wide[:, :32, :12], Grid(4, 8)))


@pytest.mark.parametrize("kind", ["zero", "equal", "nan", "infinite", "huge", "few changed"])
def test_odd_tokens_are_planned_for_as_by_plain_torch(kind: str) -> None:
    torch.manual_seed(5)
    tokens = torch.randn(1, 32, 12)
    if kind == "zero":
        tokens[:] = 0
    elif kind == "equal":
        tokens[:] = 1.0
    elif kind == "few changed":  # fewer than there are destinations: the rest is rounding
        tokens[:, 3:] = 0
    else:
        tokens[0, 5] = {"nan": float("nan"), "infinite": float("inf"), "huge": 1e30}[kind]
    fast, slow = both(tokens, Grid(4, 8))
    if kind in ("zero", "equal", "few changed"):
        assert_same(fast, slow)
    assert fast.unmerge_matrix.isfinite().all()
    assert torch.equal((fast.destinations == 5).any(), (slow.destinations == 5).any())
    assert all(len(set(row)) == len(row) for row in fast.destinations.tolist())


def test_long_regions_are_left_to_torch() -> None:
    tokens, grid = torch.randn(1, 100, 8), Grid(10, 10)
    with pytest.raises(SettingError, match="regions of more than 64 tokens"):
        ToMA(0.5, regions=Stripes(100), kernels="triton").plan(tokens, grid)
