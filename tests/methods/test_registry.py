"""Methods by name: the rows of the paper's tables stay what they are."""

import pytest
import torch

from tomadiff import Grid, Schedule, ToMA
from tomadiff.methods.registry import CATALOGUE, PAPER, entry, named

GRID = Grid(8, 8)


def test_no_name_means_two_things() -> None:
    assert not CATALOGUE.keys() & PAPER.keys()
    assert len({entry(name).title for name in (*CATALOGUE, *PAPER)}) == len(CATALOGUE) + len(PAPER)


def test_ours_and_the_papers_go_by_different_names() -> None:
    assert named("toma", 0.25) == (ToMA(0.25), ToMA().schedule)
    assert named("toma-paper", 0.25) == (ToMA.paper(0.25), Schedule(10, 5))


def test_the_papers_tile_variant_is_the_papers_preset() -> None:
    assert named("paper-tile", 0.25) == (ToMA.paper(0.25), Schedule(10, 5))


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_rows_differ_from_each_other(name: str) -> None:
    method, schedule = named(name, 0.5)
    plan = method.plan(torch.randn(1, GRID.tokens, 16), GRID)
    assert plan.kept == GRID.tokens // 2
    assert method.ratio == 0.5
    assert (method, schedule) not in [named(other, 0.5) for other in PAPER if other != name]
