"""Every family of ``test_further.py`` in short: removal is exact, and every op computes what the plan says."""

from __future__ import annotations

import pytest
import torch

import tomadiff
from tests.families import test_further
from tests.families.contract import BY_REGION, FamilyContract, recorded, traces

CONTRACTS = [
    pytest.param(contract, id=name, marks=[mark for mark in contract.pytestmark if mark.name == "skipif"])
    for name, contract in vars(test_further).items()
    if name.startswith("Test") and issubclass(contract, FamilyContract)
]


@pytest.mark.parametrize("contract", CONTRACTS)
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
