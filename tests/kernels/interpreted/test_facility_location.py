import pytest
import torch
from torch import Tensor

from tomadiff import kernels
from tomadiff.errors import ShapeError
from tomadiff.merging.select import FacilityLocation, cosines, facility_location, greedy

LENGTHS = (9, 16, 25, 64, 100, 256)


def similarity_of(tokens: Tensor) -> Tensor:
    return (cosines(tokens)[0] + 1) / 2


def assert_equal(similarity: Tensor, count: int, mask: Tensor | None = None) -> None:
    indices, gains, best = kernels.facility_location(similarity, count, mask)
    expected = greedy(FacilityLocation(), similarity, count, mask)
    assert torch.equal(indices, expected.indices)
    assert torch.equal(best, expected.best)
    torch.testing.assert_close(gains, expected.gains, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_it_chooses_as_plain_torch_does(length: int, masked: bool) -> None:
    mask = torch.rand(2, length) > 0.25 if masked else None
    assert_equal(similarity_of(torch.randn(2, length, 8)), min(length // 2, 8), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [16, 25])
def test_tokens_of_any_dtype_reach_it_as_float32(length: int, dtype: torch.dtype) -> None:
    tokens = torch.randn(3, length, 12).to(dtype)
    fast, slow = (facility_location(tokens, 6, kernels=choice) for choice in ("triton", "torch"))
    assert torch.equal(fast.indices, slow.indices)
    torch.testing.assert_close(fast.coverage, slow.coverage)


@pytest.mark.parametrize("length", [9, 16, 64, 256])
def test_ties_go_to_the_lowest_index(length: int) -> None:
    levels = torch.randint(0, 5, (2, length, length)) / 4  # sums of quarters are exact: many real ties
    assert_equal(levels, 6)
    assert_equal(levels, 6, torch.rand(2, length) > 0.5)


@pytest.mark.parametrize("length", [16, 25, 256])
def test_equal_tokens_are_chosen_in_order(length: int) -> None:
    indices, gains, best = kernels.facility_location(torch.ones(1, length, length), 4, None)
    assert indices.tolist() == [[0, 1, 2, 3]]
    assert gains.tolist() == [[length, 0, 0, 0]]
    assert bool((best == 1).all())


@pytest.mark.parametrize("length", [9, 16, 25, 200])
def test_masked_tokens_come_last_and_by_index(length: int) -> None:
    mask = torch.zeros(2, length, dtype=torch.bool)
    mask[0, [3, 7]] = True  # region 1 has no usable token at all
    assert_equal(similarity_of(torch.randn(2, length, 8)), 5, mask)
    flattering = torch.rand(2, length, length) / 2
    flattering[:, :, 0] = 1.0  # a masked token that would serve all of them best, and must not
    assert_equal(flattering, 5, mask)


def test_every_token_can_be_chosen_and_none_twice() -> None:
    indices, _, best = kernels.facility_location(similarity_of(torch.randn(2, 9, 8)), 9, None)
    assert indices.sort(1).values.tolist() == [list(range(9))] * 2
    torch.testing.assert_close(best, torch.ones(2, 9))


def test_similarity_need_not_be_symmetric_or_contiguous() -> None:
    assert_equal(torch.rand(2, 25, 25), 5)
    assert_equal(torch.rand(2, 25, 25).transpose(1, 2), 5)
    assert_equal(torch.rand(1, 130, 130).transpose(1, 2), 3)


@pytest.mark.parametrize("count", [0, 17])
def test_impossible_counts_are_refused(count: int) -> None:
    with pytest.raises(ShapeError, match="choose 1 to 16"):
        kernels.facility_location(torch.ones(1, 16, 16), count, None)
