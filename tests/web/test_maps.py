"""Merge maps say what the plan says."""

import numpy as np
import pytest
import torch
from PIL import Image

from tomadiff import Grid, Tiles, ToDo, ToMA, ToMeSD
from tomadiff.evaluation.report.figures import clusters
from tomadiff.methods.base import Method
from tomadiff.web.maps import SIDE, VIEWS, overlay, token_map

GRID = Grid(8, 12)


@pytest.mark.parametrize(
    "method", [ToMA.tile(0.5), ToMA.whole(0.75), ToMeSD(0.5), ToDo()], ids=lambda m: type(m).__name__
)
def test_a_map_counts_what_the_plan_keeps(method: Method) -> None:
    tokens = torch.randn(2, GRID.tokens, 6)
    plan = method.plan(tokens, GRID)
    found = token_map(plan, tokens)
    assert found.stays.shape == found.labels.shape == found.alike.shape == (8, 12)
    assert found.kept == plan.kept
    assert f"{plan.kept} of 96 tokens (8 × 12) stay" in str(found)
    # A destination stands for itself, and every token for one of them.
    own = found.labels[found.stays]
    assert sorted(own) == list(range(plan.kept))
    assert found.alike[found.stays] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("side", "kept", "width"), [(8, 32, 1), (22, 242, 1), (24, 288, 2)])
def test_labels_are_as_small_as_their_numbers_fit(side: int, kept: int, width: int) -> None:
    """There is a map for every block and step: on SDXL at 1024², of 100 000 tokens a step."""
    tokens = torch.randn(1, side * side, 6)
    plan = ToMA(0.5, regions=Tiles(2)).plan(tokens, Grid(side, side))
    found = token_map(plan, tokens)
    assert plan.kept == kept
    assert found.labels.itemsize == width
    assert np.array_equal(found.labels, clusters(plan, plan.grid))
    assert found.labels.max() < kept


def test_coverage_over_the_grid_has_the_mean_that_the_plan_reports() -> None:
    tokens = torch.randn(1, GRID.tokens, 6)
    found = token_map(ToMA.tile(0.5).plan(tokens, GRID), tokens)
    assert found.alike.mean() == pytest.approx(found.coverage, abs=1e-4)
    assert found.alike.min() < 0.99


def test_of_a_batch_the_guided_sample_is_shown() -> None:
    tokens = torch.randn(2, GRID.tokens, 6)
    method = ToMA.tile(0.5, share="sample")
    both, guided = token_map(method.plan(tokens, GRID), tokens), token_map(method.plan(tokens[1:], GRID), tokens[1:])
    assert np.array_equal(both.stays, guided.stays)
    assert np.array_equal(both.labels, guided.labels)


@pytest.mark.parametrize("view", VIEWS)
def test_a_map_lies_over_the_image_in_its_shape(view: str) -> None:
    tokens = torch.randn(1, GRID.tokens, 6)
    found = token_map(ToMA.tile(0.5).plan(tokens, GRID), tokens)
    generated = overlay(Image.new("RGB", (96, 64), "teal"), found, view)
    assert generated.size == (768, 512)
    assert min(generated.size) >= SIDE
    assert len(generated.getcolors() or [None] * 9) > 1


def test_destinations_stay_clear_and_the_rest_is_veiled() -> None:
    tokens = torch.randn(1, GRID.tokens, 6)
    found = token_map(ToMA.tile(0.5).plan(tokens, GRID), tokens)
    pixels = np.asarray(overlay(Image.new("RGB", (1200, 800), "black"), found, "destinations"))
    centres = pixels[50::100, 50::100, 0]
    assert np.array_equal(centres == 0, found.stays)
