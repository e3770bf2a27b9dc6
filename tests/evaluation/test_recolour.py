from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.cluster import KMeans
from torch import Tensor

from tomadiff.evaluation.inspect.observe import Place
from tomadiff.evaluation.inspect.recolour import Clustered, clustered, contact_sheet, kmeans, recoloured, token_colours
from tomadiff.merging.grid import Grid

PLACE = Place(0, 2, "down_blocks.0.attentions.0")


def inertia(tokens: Tensor, labels: Tensor) -> float:
    return sum(float((own - own.mean(0)).square().sum()) for own in (tokens[labels == k] for k in labels.unique()))


@pytest.mark.parametrize("tokens", [300, 5000])
def test_planted_clusters_are_found_however_uneven_and_far_from_the_origin(tokens: int) -> None:
    planted = torch.cat([torch.arange(8), torch.randint(0, 3, (tokens - 8 * 20,)), torch.arange(8).repeat(19)])
    planted = planted[torch.randperm(tokens)]
    centres = 10 * torch.randn(8, 32) + 500
    found = kmeans(centres[planted] + torch.randn(tokens, 32), 8)
    pairs = set(zip(planted.tolist(), found.tolist(), strict=True))
    assert len(pairs) == len({number for _, number in pairs}) == 8


def test_clusters_are_nearly_as_tight_as_those_of_scikit_learn() -> None:
    tokens = torch.randn(500, 6) @ torch.randn(6, 24)
    theirs = KMeans(8, n_init=10, random_state=0).fit(tokens.numpy()).inertia_
    assert inertia(tokens, kmeans(tokens)) < 1.1 * theirs


def test_clusters_need_no_chance_and_few_tokens_are_no_trouble() -> None:
    tokens, state = torch.randn(64, 8), torch.get_rng_state()
    assert torch.equal(kmeans(tokens), kmeans(tokens))
    assert torch.equal(torch.get_rng_state(), state)
    assert kmeans(torch.randn(3, 8), 8).unique().numel() == 3
    assert kmeans(torch.ones(9, 4), 8).unique().numel() == 1


def test_clusters_take_the_mean_colour_of_the_image_under_them() -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 4:] = (200, 100, 0)
    colours = token_colours(Image.fromarray(pixels), 2, 4)
    assert torch.allclose(colours[:, 2:] * 255, torch.tensor([200.0, 100, 0]))
    halves = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]])
    assert torch.equal(recoloured(halves, colours), colours)
    assert torch.allclose(recoloured(torch.zeros_like(halves), colours) * 255, torch.tensor([100.0, 50, 0]))


def test_neighbours_are_counted_against_chance() -> None:
    halves = Clustered(PLACE, 0, torch.tensor([[0, 0, 1, 1]] * 4))
    assert halves.alike == (2 * 4 + 3 * 4) / (3 * 4 + 3 * 4)
    assert halves.chance == 0.5
    board = Clustered(PLACE, 0, torch.arange(16).view(4, 4) % 2)
    assert board.alike == 0.5


def test_the_sheet_keeps_the_shape_of_the_image() -> None:
    cells = [
        Clustered(Place(number, 9, "blocks"), step, torch.zeros(4, 8, dtype=torch.long))
        for number in (0, 8)
        for step in (0, 5)
    ]
    wide, tall = (contact_sheet(cells, Image.new("RGB", size)) for size in ((64, 32), (32, 64)))
    assert wide.width == tall.width
    assert wide.height < tall.height


def test_a_grid_says_how_labels_lie() -> None:
    tokens = torch.zeros(6, 2)
    tokens[3:] = 1
    labels = clustered(PLACE, 0, tokens, Grid(2, 3)).labels
    assert (labels[0] == labels[0, 0]).all()
    assert (labels[1] != labels[0, 0]).all()
