"""Every family of ``test_further.py`` in short: removal is exact, and every op computes what the plan says; of videos
also where tiles reach over frames."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tomadiff
from tests.families import test_families, test_further, test_newer
from tests.families.contract import BY_REGION, FamilyContract, recorded, traces
from tomadiff import Tiles

FURTHER = [one for name, one in vars(test_further).items() if name.startswith("Test")]
FURTHER_VIDEOS = [one for one in FURTHER if issubclass(one, test_further.VideoContract)]
VIDEOS = [test_families.TestWan, test_newer.TestCosmos, *FURTHER_VIDEOS]


def cases(contracts: list[type[FamilyContract]]) -> list[Any]:
    """Each skipped where diffusers is older than its model."""
    marks = [[mark for mark in getattr(one, "pytestmark", []) if mark.name == "skipif"] for one in contracts]
    return [pytest.param(one, id=one.__name__, marks=own) for one, own in zip(contracts, marks, strict=True)]


@pytest.mark.parametrize("contract", cases(FURTHER))
def test_contract_in_short(contract: type[FamilyContract]) -> None:
    one = contract()
    model, inputs = one.model(), one.inputs(*one.sizes[0], seeds=(0, 1))
    plain, before = one.run(model, **inputs), traces(model)
    with tomadiff.apply(model, 0.5, skip=0, **BY_REGION) as patch:
        calls = recorded(model, lambda: one.run(model, **inputs))
        assert not patch.report().models[0].bypassed
    assert calls
    for call in calls:
        one.check_call(call)
    assert traces(model) == before
    assert torch.equal(one.run(model, **inputs), plain)


@test_newer.BOTH_SPANS
@pytest.mark.parametrize("contract", cases(VIDEOS))
def test_tiles_may_reach_over_frames(contract: type[FamilyContract], span: Any) -> None:
    one = contract()
    model, inputs = one.model(), one.inputs(*one.sizes[0], seeds=(0, 1))
    with tomadiff.apply(model, 0.5, span=span, skip=0, regions=Tiles(2, frames=2), **BY_REGION):
        calls = recorded(model, lambda: one.run(model, **inputs))
    assert {call.plan.layout.length for call in calls} == {8}
    for call in calls:
        one.check_call(call)
