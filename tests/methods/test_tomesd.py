"""Parity with the package tomesd 0.1.3, which nobody here wrote."""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tomadiff import Grid, ToMeSD, apply
from tomadiff.errors import SettingError

tomesd = pytest.importorskip("tomesd")
oracle = tomesd.merge.bipartite_soft_matching_random2d

CASES = [
    (height, width, ratio, seed)
    for seed, (height, width, ratio) in enumerate(
        [
            (8, 8, 0.5),
            (8, 8, 0.75),
            (16, 8, 0.25),
            (7, 9, 0.5),
            (5, 5, 0.6),
            (13, 6, 0.3),
            (2, 2, 0.5),
            (3, 11, 0.4),
            (12, 12, 0.7),
            (9, 16, 0.5),
        ]
    )
]


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize(("height", "width", "ratio", "seed"), CASES)
def test_merge_and_unmerge_equal_the_package(height: int, width: int, ratio: float, seed: int, random: bool) -> None:
    """Sizes that 2×2 does not divide included."""
    tokens = torch.randn(2, height * width, 12, generator=torch.Generator().manual_seed(seed))
    dice = torch.Generator().manual_seed(seed)
    merge, unmerge = oracle(
        tokens, width, height, 2, 2, int(height * width * ratio), no_rand=not random, generator=dice
    )
    plan = ToMeSD(ratio, random=random, seed=seed).plan(tokens, Grid(height, width))
    assert torch.allclose(plan.merge(tokens), merge(tokens), atol=1e-6)
    assert torch.allclose(plan.unmerge(plan.merge(tokens)), unmerge(merge(tokens)), atol=1e-6)
    other = torch.randn_like(merge(tokens))
    assert torch.allclose(plan.unmerge(other), unmerge(other), atol=1e-6)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_patched_sd15_equals_the_package(random: bool, everything: bool) -> None:
    drawn = tiny.build("sd15")
    torch.manual_seed(5)  # the package forks its generator from the global one at its first use
    theirs = tomesd.apply_patch(drawn.pipe, 0.5, use_rand=random, merge_crossattn=everything, merge_mlp=everything)
    expected = drawn.draw()
    tomesd.remove_patch(theirs)
    method = ToMeSD(0.5, random=random, seed=5, merge_cross_attention=everything, merge_feed_forward=everything)
    with apply(drawn.pipe, method) as patch:
        assert torch.allclose(drawn.draw(), expected, atol=1e-5)
        assert patch.report().models[0].levels[0].plans_made == drawn.steps


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_works_where_the_package_does_not(family: str) -> None:
    drawn = tiny.build(family)
    base = drawn.draw()
    with apply(drawn.pipe, ToMeSD(0.5)) as patch:
        assert not torch.equal(drawn.draw(), base)
        report = patch.report().models[0].levels[0]
        assert report.tokens_after == report.tokens_before // 2
    assert torch.equal(drawn.draw(), base)


def test_guidance_passes_can_share_one_pattern() -> None:
    tokens = torch.randn(4, 64, 8)
    shared = ToMeSD(0.5, share="prompt").plan(tokens, Grid(8, 8), passes=2)
    assert torch.equal(shared.stay[0], shared.stay[2])
    assert not torch.equal(shared.stay[0], shared.stay[1])


def test_pictures_repeat_themselves() -> None:
    """Unlike the package, which draws on where the last picture ended."""
    drawn = tiny.build("sd15")
    with apply(drawn.pipe, ToMeSD(0.5)):
        assert torch.equal(drawn.draw(), drawn.draw())


def test_a_ratio_that_windows_cannot_give_is_refused() -> None:
    with pytest.raises(SettingError, match="larger stride"):
        ToMeSD(0.8)
    assert ToMeSD(0.8, stride=(4, 4)).plan(torch.randn(1, 64, 4), Grid(8, 8)).kept == 64 - int(64 * 0.8)


@pytest.mark.parametrize("size", [(1, 7), (1, 1), (3, 1)])
def test_grids_smaller_than_a_window(size: tuple[int, int]) -> None:
    tokens = torch.randn(1, size[0] * size[1], 4)
    plan = ToMeSD(0.5).plan(tokens, Grid(*size))
    assert plan.unmerge(plan.merge(tokens)).shape == tokens.shape
