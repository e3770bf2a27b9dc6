import pytest
import torch
from torch import Tensor

from tomadiff import Grid, Stripes, Tiles, kernels
from tomadiff.errors import SettingError
from tomadiff.merging.grid import Regions
from tomadiff.merging.plan import Destinations, MergePlan
from tomadiff.merging.select import SELECTORS
from tomadiff.merging.weights import NOTHING, Seen, choose_destinations, weigh

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# How far a number may be off that is between 0 and 1; the interpreter cuts bfloat16 off where torch rounds.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 2**-7}
CASES = [  # regions of 9, 16, 25, 64, 100 and 256 tokens, and some that grids cut unevenly
    (Grid(3, 6), Tiles(3)),
    (Grid(4, 8), Tiles(4)),
    (Grid(5, 5), Tiles(5)),
    (Grid(8, 8), Tiles(8)),
    (Grid(10, 10), Stripes(100)),
    (Grid(16, 16), Tiles(16)),
    (Grid(7, 9), Tiles(4)),
]


def destinations(tokens: Tensor, grid: Grid, regions: Regions, ratio: float) -> tuple[Destinations, Seen]:
    chosen, seen = choose_destinations(tokens, grid, ratio, regions, None, SELECTORS["strided"])
    return chosen, seen


def assert_same_plan(fast: MergePlan, slow: MergePlan, dtype: torch.dtype) -> None:
    assert fast.fused
    assert not slow.fused
    for name in ("merge_matrix", "unmerge_matrix", "sizes", "coverage"):
        mine, expected = getattr(fast, name), getattr(slow, name)
        assert mine.dtype == expected.dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(mine.float(), expected.float(), rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("known", [False, True], ids=["tokens", "cosines"])
@pytest.mark.parametrize(("grid", "regions"), CASES, ids=str)
def test_it_weighs_as_plain_torch_does(grid: Grid, regions: Regions, known: bool) -> None:
    tokens = torch.randn(1, grid.tokens, 20)
    chosen, seen = destinations(tokens, grid, regions, 0.5)
    fast, slow = (
        weigh(tokens, chosen, temperature=0.1, seen=seen if known else NOTHING, kernels=way)
        for way in ("triton", "torch")
    )
    assert_same_plan(fast, slow, torch.float32)


@pytest.mark.parametrize("known", [False, True], ids=["tokens", "cosines"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_weighed_in_float32(dtype: torch.dtype, known: bool) -> None:
    grid, tokens = Grid(7, 9), torch.randn(2, 63, 36).to(dtype)
    chosen, seen = destinations(tokens, grid, Tiles(4), 0.6)
    fast, slow = (
        weigh(tokens, chosen, temperature=0.2, seen=seen if known else NOTHING, kernels=way)
        for way in ("triton", "torch")
    )
    assert_same_plan(fast, slow, dtype)


def test_a_sharp_softmax_leaves_exact_zeros() -> None:
    grid, tokens = Grid(4, 4), torch.randn(1, 16, 8)
    chosen, seen = destinations(tokens, grid, Tiles(4), 0.5)
    fast, slow = (weigh(tokens, chosen, temperature=1e-3, seen=seen, kernels=way) for way in ("triton", "torch"))
    assert_same_plan(fast, slow, torch.float32)
    assert torch.equal(fast.unmerge_matrix == 0, slow.unmerge_matrix == 0)
    assert float(fast.unmerge_matrix[fast.unmerge_matrix > 0].min()) > 1e-9


def test_zero_and_broken_tokens_stay_in_their_place() -> None:
    grid, tokens = Grid(4, 8), torch.randn(1, 32, 8)
    tokens[0, 1], tokens[0, 9], tokens[0, 18], tokens[0, 30] = 0.0, float("nan"), float("inf"), 3e38
    chosen, _ = destinations(tokens, grid, Tiles(4), 0.5)
    fast, slow = (weigh(tokens, chosen, temperature=0.1, kernels=way) for way in ("triton", "torch"))
    assert_same_plan(fast, slow, torch.float32)
    assert bool(fast.merge_matrix.isfinite().all())


def test_a_destination_of_no_mass_stands_for_itself() -> None:
    grid, tokens = Grid(4, 4), torch.randn(1, 16, 8)
    chosen, seen = destinations(tokens, grid, Tiles(4), 0.75)
    assert seen.cosine is not None
    seen.cosine[:, :, 2] = -1.0  # nobody is like the third destination, not even itself
    fast, slow = (weigh(tokens, chosen, temperature=1e-3, seen=seen, kernels=way) for way in ("triton", "torch"))
    assert_same_plan(fast, slow, torch.float32)
    assert fast.merge_matrix[0, 0, 2].argmax() == chosen.local_index[0, 0, 2]
    assert fast.merge_matrix[0, 0, 2].sum() == 1


def test_tokens_may_be_part_of_a_longer_sequence() -> None:
    grid, longer = Grid(4, 8), torch.randn(2, 40, 12)
    tokens = longer[:, :32]
    chosen, _ = destinations(tokens, grid, Tiles(4), 0.5)
    fast, slow = (weigh(tokens, chosen, temperature=0.1, kernels=way) for way in ("triton", "torch"))
    assert_same_plan(fast, slow, torch.float32)


def test_it_takes_tokens_or_cosines_and_not_both() -> None:
    places, rows = torch.zeros(1, 1, 2, dtype=torch.long), torch.arange(4)[None]
    with pytest.raises(SettingError, match="not both"):
        kernels.merge_weights(None, None, rows, places, rows >= 0, 0.1, torch.float32)
