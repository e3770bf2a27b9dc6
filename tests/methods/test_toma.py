from __future__ import annotations

import dataclasses

import pytest
import torch

from tomadiff import Grid, Stripes, Tiles, ToMA, Whole
from tomadiff.errors import SettingError, ShapeError
from tomadiff.merging.select import strided


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"ratio": 1.0}, "share of tokens removed"),
        ({"ratio": -0.1}, "share of tokens removed"),
        ({"ratio": "half"}, "share of tokens removed"),
        ({"regions": 4}, r"Tiles\(4\)"),
        ({"attention_regions": "whole"}, r"Whole\(\)"),
        ({"unmerge": "inverse"}, "'pseudo-inverse'"),
        ({"selector": "best"}, "'facility_location'"),
        ({"span": "layer"}, "'op', 'block'"),
        ({"scope": "model"}, "'level', 'block'"),
        ({"share": "all"}, "'sample', 'prompt', 'batch'"),
        ({"levels": ()}, r"\(0, 1\)"),
        ({"levels": 0}, r"\(0, 1\)"),
        ({"levels": (-1,)}, "at least 0"),
        ({"skip": -1}, "at least 0"),
        ({"merge_attention": False, "merge_cross_attention": False, "merge_feed_forward": False}, "at least one"),
    ],
)
def test_wrong_values_raise_at_construction(settings: dict[str, object], hint: str) -> None:
    with pytest.raises(SettingError, match=hint):
        ToMA.tile(**settings)  # type: ignore[arg-type]


def test_settings_are_frozen_hashable_and_replaceable() -> None:
    method = ToMA.tile(0.5, levels=[0, 1])
    assert method.levels == (0, 1)
    assert hash(method) == hash(ToMA.tile(0.5, levels=(0, 1)))
    assert dataclasses.replace(method, ratio=0.25).ratio == 0.25
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.ratio = 0.7  # type: ignore[misc]


def test_paper_settings() -> None:
    paper = ToMA.paper(0.75)
    assert (paper.regions, paper.attention_regions) == (Tiles(4), None)
    assert (paper.ratio, paper.span, paper.scope, paper.unmerge) == (0.75, "op", "level", "transpose")


def test_regions_are_said_as_they_are_written() -> None:
    for regions, words in (
        (Tiles(4), "Tiles(4)"),
        (Tiles(count=256), "Tiles(count=256)"),
        (Tiles(4, frames=3), "Tiles(4, frames=3)"),
        (Whole(), "Whole()"),
    ):
        assert f"regions {words}," in str(ToMA(0.5, regions=regions))


@pytest.mark.parametrize("selector", ["facility_location", "random", "strided", "kmeans", strided])
@pytest.mark.parametrize("regions", [Tiles(4), Stripes(8), Whole()])
def test_every_selector_in_every_region(selector: object, regions: object) -> None:
    tokens = torch.randn(2, 63, 8)
    plan = ToMA.tile(0.5, regions=regions, selector=selector).plan(tokens, Grid(7, 9))  # type: ignore[arg-type]
    assert plan.merge(tokens).isfinite().all()


def test_reweigh_keeps_destinations_and_renews_weights() -> None:
    grid, method = Grid(8, 8), ToMA.tile(0.5)
    old, new = torch.randn(2, 64, 8), torch.randn(2, 64, 8)
    plan = method.plan(old, grid)
    fresh = method.reweigh(plan, new)
    assert torch.equal(fresh.destinations, plan.destinations)
    assert not torch.allclose(fresh.merge_matrix, plan.merge_matrix)
    assert torch.allclose(method.reweigh(plan, old).merge_matrix, plan.merge_matrix, atol=1e-5)


def test_ratio_for_schedules() -> None:
    tokens = torch.randn(1, 64, 4)
    assert ToMA.tile(0.5).plan(tokens, Grid(8, 8), ratio=0.75).kept == 16


def test_plans_hold_no_graph() -> None:
    plan = ToMA.tile(0.5).plan(torch.randn(1, 16, 4, requires_grad=True), Grid(4, 4))
    assert not plan.merge_matrix.requires_grad


@pytest.mark.parametrize("shape", [(16, 4), (1, 15, 4)])
def test_tokens_must_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"\(batch, 16, channels\)"):
        ToMA.tile(0.5).plan(torch.randn(shape), Grid(4, 4))
    with pytest.raises(ShapeError, match="int64"):
        ToMA.tile(0.5).plan(torch.ones(1, 16, 4, dtype=torch.long), Grid(4, 4))
    with pytest.raises(SettingError, match="passes"):
        ToMA.tile(0.5).plan(torch.randn(1, 16, 4), Grid(4, 4), passes=0)


@pytest.mark.parametrize("name", ["regions", "attention_regions"])
def test_regions_that_no_gpu_can_hold_say_what_to_take(name: str) -> None:
    """An image of 4096² pixels has 65,536 tokens in the newest models."""
    with pytest.raises(SettingError, match=r"65536 tokens.*Tiles\(4\)"):
        ToMA(0.5, **{name: Whole()}).plan(torch.empty(1, 65536, 1), Grid(256, 256))
    assert ToMA(0.5).plan(torch.rand(1, 65536, 1), Grid(256, 256)).kept == 32768
