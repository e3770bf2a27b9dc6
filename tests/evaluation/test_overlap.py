from __future__ import annotations

import pytest
import torch

from tomadiff.evaluation.inspect.overlap import overlap


def test_identical_steps_have_all_in_common_and_disjoint_ones_nothing() -> None:
    first, second = torch.tensor([0, 3, 5]), torch.tensor([1, 2, 4])
    found = overlap([0, 1, 2], [first, first.flip(0), second], tokens=6)
    assert found.shares.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert found.chance == 0.5
    assert found.by_distance == [1.0, 0.5, 0.0]
    assert found.since_first(2) == [1.0, 1.0, 1.0]
    assert found.since_first(10) == [1.0, 1.0, 0.0]


def test_shares_are_of_the_row_where_counts_differ() -> None:
    found = overlap([0, 1], [torch.tensor([0, 1]), torch.tensor([0, 1, 2, 3])], tokens=8)
    assert found.shares.tolist() == [[1, 1], [0.5, 1]]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_random_destinations_have_the_share_of_chance_in_common(share: float) -> None:
    tokens, kept = 4096, round(4096 * share)
    generated = [torch.randperm(tokens)[:kept] for _ in range(20)]
    found = overlap(range(20), generated, tokens)
    apart = found.shares[~torch.eye(20, dtype=torch.bool)]
    assert found.chance == share
    assert apart.mean().item() == pytest.approx(share, abs=0.01)
    assert found.by_distance[1] == pytest.approx(share, abs=0.02)
