import pytest
import torch
from torch import Tensor

from tomadiff import Grid, Stripes, Tiles, ToMA, kernels
from tomadiff.errors import ShapeError
from tomadiff.merging.grid import Regions
from tomadiff.merging.plan import MergePlan

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2**-6}
CASES = [  # regions of 9, 16, 25, 64, 100 and 256 tokens, and some that grids cut unevenly; odd channels
    (Grid(3, 6), Tiles(3), 3),
    (Grid(4, 8), Tiles(4), 40),
    (Grid(5, 5), Tiles(5), 17),
    (Grid(8, 8), Tiles(8), 24),
    (Grid(10, 10), Stripes(100), 20),
    (Grid(16, 16), Tiles(16), 16),
    (Grid(7, 9), Tiles(4), 33),
    (Grid(5, 5), Stripes(8), 7),
]


def plans(grid: Grid, regions: Regions, tokens: Tensor) -> tuple[MergePlan, MergePlan]:
    """The same matrices, once for kernels and once for plain torch."""
    slow = ToMA.tile(0.5, regions=regions, selector="strided", kernels="torch").plan(tokens, grid)
    fast = MergePlan(**{**slow.__dict__, "fused": True})
    return fast, slow


def assert_close(mine: Tensor, expected: Tensor) -> None:
    assert mine.dtype == expected.dtype
    tolerance = TOLERANCE[mine.dtype]
    torch.testing.assert_close(mine.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("grid", "regions", "channels"), CASES, ids=str)
def test_it_merges_and_unmerges_as_plain_torch_does(grid: Grid, regions: Regions, channels: int) -> None:
    tokens = torch.randn(1, grid.tokens, channels)
    fast, slow = plans(grid, regions, tokens)
    merged = slow.merge(tokens)
    assert_close(fast.merge(tokens), merged)
    assert_close(fast.unmerge(merged), slow.unmerge(merged))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_with_residual(dtype: torch.dtype) -> None:
    tokens = torch.randn(2, 63, 19).to(dtype)
    fast, slow = plans(Grid(7, 9), Tiles(4), tokens)
    merged = slow.merge(tokens)
    assert_close(fast.merge(tokens), merged)
    assert_close(fast.unmerge_add(merged, tokens), slow.unmerge_add(merged, tokens))


@pytest.mark.parametrize("samples", [1, 2])
def test_a_plan_serves_batches_that_repeat_its_samples(samples: int) -> None:
    fast, slow = plans(Grid(4, 8), Tiles(4), torch.randn(samples, 32, 8))
    tokens = torch.randn(4, 32, 8)
    merged = slow.merge(tokens)
    assert_close(fast.merge(tokens), merged)
    assert_close(fast.unmerge_add(merged, tokens), slow.unmerge_add(merged, tokens))


def test_tokens_need_not_be_contiguous() -> None:
    longer, turned = torch.randn(2, 45, 8), torch.randn(2, 8, 32).transpose(1, 2)
    for tokens in (longer[:, 5:37], turned):
        fast, slow = plans(Grid(4, 8), Tiles(4), tokens)
        merged = torch.randn(2, 20, 8)[:, :16]
        assert_close(fast.merge(tokens), slow.merge(tokens))
        assert_close(fast.unmerge_add(merged, tokens), slow.unmerge_add(merged, tokens))


def test_a_broken_token_stays_in_its_region() -> None:
    tokens = torch.randn(1, 32, 8)
    fast, slow = plans(Grid(4, 8), Tiles(4), tokens)
    tokens[0, 0] = float("nan")
    assert torch.equal(fast.merge(tokens).isnan(), slow.merge(tokens).isnan())
    assert not fast.merge(tokens)[:, 8:].isnan().any()


def test_where_gradients_are_wanted_plain_torch_takes_over() -> None:
    found = []
    for place in (0, 1):
        torch.manual_seed(1)
        plan = plans(Grid(7, 9), Tiles(4), torch.randn(2, 63, 5))[place]
        leaves = [torch.randn(4, 63, 5), torch.randn(4, 63, 5), plan.merge_matrix, plan.unmerge_matrix]
        tokens, residual, *_ = (leaf.requires_grad_() for leaf in leaves)
        plan.unmerge_add(plan.merge(tokens), residual).square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    tokens = torch.randn(2, 32, 8)
    fast, _ = plans(Grid(4, 8), Tiles(4), tokens)
    index, mask = fast.layout.index, fast.layout.mask
    with pytest.raises(ShapeError, match="cannot serve a batch of 3"):
        fast.merge(torch.randn(3, 32, 8))
    with pytest.raises(ShapeError, match="dtype"):
        kernels.merge(tokens.half(), fast.merge_matrix, index)
    with pytest.raises(ShapeError, match="keeps 16"):
        kernels.unmerge_add(torch.randn(2, 15, 8), fast.unmerge_matrix, index, mask, 32, None)
