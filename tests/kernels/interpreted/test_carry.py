import pytest
import torch

from tomadiff import Grid, Stripes, Tiles, ToMA, kernels
from tomadiff.errors import ShapeError
from tomadiff.grid import Regions
from tomadiff.plan import PickPlan

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2**-5}
CASES = [  # regions of 9, 16, 25 and 64 tokens, and some that grids cut unevenly; odd channels
    (Grid(3, 6), Tiles(3), 3),
    (Grid(4, 8), Tiles(4), 40),
    (Grid(5, 5), Tiles(5), 17),
    (Grid(8, 8), Tiles(8), 24),
    (Grid(7, 9), Tiles(4), 33),
    (Grid(5, 5), Stripes(8), 7),
]


def plans(grid: Grid, regions: Regions, tokens: torch.Tensor) -> tuple[PickPlan, PickPlan]:
    """The same matrices, once for kernels and once for plain torch."""
    slow = ToMA(0.5, regions=regions, kernels="torch").plan(tokens, grid)
    assert isinstance(slow, PickPlan)
    known = {name: value for name, value in slow.__dict__.items() if not name.startswith("_")}
    return PickPlan(**{**known, "fused": True}), slow


def assert_close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    assert mine.dtype == expected.dtype
    tolerance = TOLERANCE[mine.dtype]
    torch.testing.assert_close(mine.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("grid", "regions", "channels"), CASES, ids=str)
def test_it_carries_as_plain_torch_does(grid: Grid, regions: Regions, channels: int, share: float) -> None:
    torch.manual_seed(0)
    tokens, last = torch.randn(2, 1, grid.tokens, channels)
    fast, slow = plans(grid, regions, tokens)
    merged = torch.randn(1, slow.kept, channels)
    assert_close(fast.carry(merged, last, share), slow.carry(merged, last, share))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tokens, last = torch.randn(2, 2, 63, 19).to(dtype)
    fast, slow = plans(Grid(7, 9), Tiles(4), tokens)
    merged = slow.merge(tokens)
    assert_close(fast.carry(merged, last, 0.7), slow.carry(merged, last, 0.7))


@pytest.mark.parametrize("samples", [1, 2])
def test_a_plan_serves_batches_that_repeat_its_samples(samples: int) -> None:
    torch.manual_seed(2)
    fast, slow = plans(Grid(4, 8), Tiles(4), torch.randn(samples, 32, 8))
    merged, last = torch.randn(4, slow.kept, 8), torch.randn(4, 40, 8)[:, :32]
    assert_close(fast.carry(merged, last), slow.carry(merged, last))


def test_a_wrong_number_of_tokens_is_refused() -> None:
    fast, _ = plans(Grid(4, 8), Tiles(4), torch.randn(1, 32, 8))
    given = fast.unmerge_matrix, fast.layout.index, fast.layout.mask, fast.places, torch.randn(1, 32, 8)
    with pytest.raises(ShapeError, match="Got 3 merged tokens for a plan that keeps 16"):
        kernels.carry(torch.randn(1, 3, 8), *given, 1.0)
