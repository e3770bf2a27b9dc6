"""Tables with a row for every token, of every shape that models have: rows of kept tokens are picked, others stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tomadiff import Grid, Schedule, Tiles, ToMA
from tomadiff.engine.arguments import picked_rows
from tomadiff.engine.group import PlanGroup, StepContext
from tomadiff.engine.site import Site
from tomadiff.families import Mask, Op, Rotary, Rows, TokenLayout

GRID, HEAD, TAIL, BATCH = Grid(4, 4), 2, 3, 2
LENGTH = HEAD + GRID.tokens + TAIL
Call = tuple[Site, Tensor]


@pytest.fixture
def call() -> Call:
    """A call whose samples keep other tokens."""
    tokens = torch.randn(BATCH, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    group = PlanGroup("blocks", ToMA(0.5), Schedule(), StepContext(), level=0)
    group.layout = TokenLayout.flat(GRID, TAIL, head=HEAD)
    group.plan = ToMA(0.5, regions=Tiles(2), share="sample").plan(tokens[:, HEAD:-TAIL], GRID)
    assert not torch.equal(*group.plan.destinations)
    return Site(group, "blocks.0.attn", "attention", Op("attn", "attention")), tokens


def kept(site: Site, sample: int) -> list[int]:
    """Which tokens of a sequence one sample is left with."""
    plan = site.group.plan
    assert plan is not None
    own = (HEAD + plan.destinations[sample]).tolist()
    return [*range(HEAD), *own, *range(HEAD + GRID.tokens, LENGTH)]


@pytest.mark.parametrize(
    ("axis", "shape"),
    [
        pytest.param(1, (1, LENGTH, 6), id="angles of one sample for all"),
        pytest.param(1, (BATCH, LENGTH, 1, 6), id="angles, heads behind"),
        pytest.param(2, (BATCH, 2, LENGTH, 6), id="angles, heads first"),
        pytest.param(-2, (BATCH, 2, LENGTH, 6), id="counted from behind"),
        pytest.param(2, (BATCH, 1, LENGTH, 3, 2, 2), id="matrices"),
    ],
)
@pytest.mark.parametrize("make", [torch.rand, lambda *shape: torch.polar(torch.ones(shape), torch.rand(shape))])
def test_rows_of_kept_tokens(call: Call, axis: int, shape: tuple[int, ...], make: Callable[..., Tensor]) -> None:
    site, tokens = call
    table = make(*shape)
    picked = picked_rows(site, Rotary("rotary", axis=axis), tokens, (table, table))
    for one in picked:
        for sample, (rows, whole) in enumerate(zip(one, table.expand(BATCH, *shape[1:]), strict=True)):
            assert torch.equal(rows, whole.index_select(axis % len(shape) - 1, torch.tensor(kept(site, sample))))


def test_text_that_is_given_apart_keeps_its_rows(call: Call) -> None:
    site, tokens = call
    table = torch.rand(BATCH, 5 + LENGTH, 6)
    picked = picked_rows(site, Rotary("rotary", axis=1, text_first=True), tokens, table)
    for sample in range(BATCH):
        assert torch.equal(picked[sample], table[sample, [*range(5), *(5 + place for place in kept(site, sample))]])


def test_square_masks_lose_rows_and_columns(call: Call) -> None:
    site, tokens = call
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH)
    picked = picked_rows(site, Mask("mask", square=True), tokens, mask)
    for sample in range(BATCH):
        own = kept(site, sample)
        assert torch.equal(picked[sample, 0], mask[sample, 0][own][:, own])


def test_one_row_for_all_tokens_stays(call: Call) -> None:
    site, tokens = call
    modulation = torch.rand(BATCH, 1, 6)
    assert picked_rows(site, Rows("temb", axis=1), tokens, modulation) is modulation
    assert picked_rows(site, Rows("temb", axis=1, dims=4), tokens, tokens) is tokens, "of other dimensions"
