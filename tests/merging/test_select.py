from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies import clustered
from tomadiff.errors import SettingError, ShapeError
from tomadiff.merging.select import (
    SELECTORS,
    cosines,
    facility_location,
    greedy,
    random,
)


def shifted(tokens: Tensor) -> Tensor:
    return (cosines(tokens)[0] + 1) / 2


def features(kind: str, seed: int, count: int = 48) -> Tensor:
    if kind == "random":
        return torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return clustered(6, count // 6, 16, seed, spread=0.2)[0]


# ------------------------------------------------------------------------------ against somebody else's code
@pytest.mark.parametrize("kind", ["random", "clustered"])
@pytest.mark.parametrize("seed", range(8))
def test_equals_apricot(kind: str, seed: int) -> None:
    """Same gains to 1e-5, and the same picks for as long as no gap is smaller than that."""
    apricot = pytest.importorskip("apricot")
    tokens = features(kind, seed)
    similarity = shifted(tokens[None])
    ours = facility_location(similarity=similarity, count=20)
    oracle = apricot.FacilityLocationSelection(20, metric="precomputed", optimizer="naive")
    oracle.fit(similarity[0].double().numpy())
    assert np.allclose(ours.gains[0].numpy(), oracle.gains, atol=1e-5)
    clear = _clear_prefix(similarity[0], oracle.ranking)
    assert clear >= 5, "the test would show nothing"
    assert ours.indices[0, :clear].tolist() == list(oracle.ranking[:clear])


def _clear_prefix(similarity: Tensor, ranking: np.ndarray, gap: float = 1e-5) -> int:
    """How many first picks of ``ranking`` lead the runner-up by more than ``gap``."""
    best = torch.zeros(len(similarity), dtype=torch.float64)
    for place, pick in enumerate(ranking):
        gains = (similarity.double() - best).clamp_min(0).sum(-1)
        first, second = gains.topk(2).values
        if first - second <= gap:
            return place
        best = torch.maximum(best, similarity[pick].double())
    return len(ranking)


@pytest.mark.parametrize(("size", "count"), [(6, 2), (8, 3), (10, 4), (10, 5)])
@pytest.mark.parametrize("seed", range(10))
def test_greedy_bound_against_brute_force(size: int, count: int, seed: int) -> None:
    similarity = shifted(torch.randn(1, size, 3, generator=torch.Generator().manual_seed(seed)))
    optimum = max(
        similarity[0][:, list(chosen)].amax(1).sum().item() for chosen in itertools.combinations(range(size), count)
    )
    assert facility_location(similarity=similarity, count=count).gains.sum().item() >= (1 - 1 / math.e) * optimum - 1e-6


# ------------------------------------------------------------------------------ properties
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 10_000), st.data())
def test_gains_never_increase_and_picks_are_distinct(length: int, batch: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, length))
    tokens = torch.randn(batch, length, 5, generator=torch.Generator().manual_seed(seed))
    chosen = facility_location(tokens, count)
    assert (chosen.gains.diff(dim=1) <= 1e-4).all()
    assert all(len(set(row)) == count for row in chosen.indices.tolist())
    best = shifted(tokens).gather(2, chosen.indices[:, None].expand(-1, length, -1)).amax(-1)
    assert torch.allclose(chosen.gains.sum(-1), best.sum(-1), atol=1e-3)


@pytest.mark.parametrize("name", SELECTORS)
@given(length=st.integers(2, 30), seed=st.integers(0, 1000), data=st.data())
def test_selectors_keep_their_promises(name: str, length: int, seed: int, data: st.DataObject) -> None:
    """Distinct picks, only allowed ones while there are enough, the same ones again, each region by itself."""
    generator = torch.Generator().manual_seed(seed)
    similarity = shifted(torch.randn(3, length, 4, generator=generator))
    mask = torch.rand(3, length, generator=generator) < 0.7
    count = data.draw(st.integers(1, length))
    chosen = SELECTORS[name](similarity, count, mask)
    for row, allowed in zip(chosen.indices.tolist(), mask, strict=True):
        assert len(set(row)) == count
        assert int(allowed[row].sum()) == min(count, int(allowed.sum()))
    again = SELECTORS[name](similarity, count, mask)
    assert torch.equal(chosen.indices, again.indices)
    if name != "random":
        alone = SELECTORS[name](similarity[1:2], count, mask[1:2])
        assert torch.equal(alone.indices[0], chosen.indices[1])


def test_padding_is_never_chosen_even_when_all_tokens_are_broken() -> None:
    """Masked tokens are taken by index, so real ones come before the padding behind them."""
    similarity = torch.zeros(1, 6, 6)
    mask = torch.tensor([[False, True, False, False, False, False]])  # 0, 2 broken; 3, 4, 5 padding
    for name, select in SELECTORS.items():
        assert sorted(select(similarity, 3, mask).indices[0].tolist()) == [0, 1, 2], name


def test_ties_go_to_the_lowest_index() -> None:
    chosen = facility_location(torch.ones(2, 5, 3), 3)
    assert chosen.indices.tolist() == [[0, 1, 2]] * 2
    assert chosen.gains[0].tolist() == pytest.approx([5.0, 0.0, 0.0], abs=1e-5)


def test_rounding_does_not_choose() -> None:
    """Two tokens that are nearest to each other gain equally, and many are left at the end."""
    generator = torch.Generator().manual_seed(0)
    cosine, _ = cosines(torch.randn(64, 64, 32, generator=generator))
    rounded = cosine + 2e-7 * (torch.rand(cosine.shape, generator=generator) - 0.5)
    choices = [facility_location(similarity=(one + 1) / 2, count=48).indices for one in (cosine, rounded)]
    assert (choices[0] == choices[1]).all(1).float().mean() > 0.95  # a third at most if rounding decides ties


def test_given_similarity_may_be_lopsided() -> None:
    """``similarity[i, j]`` says how well j stands for i: column 2 stands for all."""
    similarity = torch.tensor([[[0.1, 0.0, 0.9], [0.0, 0.1, 0.9], [0.0, 0.0, 0.9]]])
    assert facility_location(similarity=similarity, count=1).indices.item() == 2


def test_one_destination_per_cluster_where_random_fails() -> None:
    hits = {"facility_location": 0, "random": 0}
    for seed in range(20):
        tokens, labels = clustered(8, 8, 32, seed)
        for name in hits:
            select = SELECTORS[name]
            chosen = select(shifted(tokens[None]), 8, None).indices[0]
            hits[name] += len(set(labels[chosen].tolist())) == 8
    assert hits["facility_location"] == 20
    assert hits["random"] <= 2


def test_kmeans_finds_clusters_too() -> None:
    tokens, labels = clustered(4, 12, 16, seed=5)
    found = [len(set(labels[SELECTORS["kmeans"](shifted(tokens[None]), 4, None).indices[0]].tolist()))]
    assert max(found) >= 3


def test_random_has_its_own_generator() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, two = (
        random(torch.rand(2, 9, 9), 4, generator=torch.Generator().manual_seed(seed)).indices for seed in (1, 2)
    )
    torch.manual_seed(7)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(one, two)


def test_greedy_is_facility_location_of_a_similarity() -> None:
    similarity = shifted(torch.randn(1, 9, 4))
    chosen = greedy(similarity, 3)
    assert torch.equal(chosen.indices, facility_location(similarity=similarity, count=3).indices)


# ------------------------------------------------------------------------------ bad input
def test_broken_tokens_are_chosen_last() -> None:
    tokens = torch.randn(1, 6, 4)
    tokens[0, 1, 2], tokens[0, 4, 0] = float("nan"), float("inf")
    chosen = facility_location(tokens, 6).indices[0].tolist()
    assert set(chosen[-2:]) == {1, 4}


def test_cosines_of_zero_huge_and_broken_tokens() -> None:
    tokens = torch.tensor([[3.0, 4.0], [0.0, 0.0], [float("nan"), 1.0], [1e30, 1e30], [-3.0, -4.0]])
    cosine, usable = cosines(tokens)
    assert usable.tolist() == [True, True, False, False, True]
    assert cosine[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0, -1.0], abs=1e-6)
    assert cosine.isfinite().all()
    picked, _ = cosines(tokens, torch.tensor([4, 0]))
    assert torch.allclose(picked, cosine[[4, 0]])


def test_impossible_requests() -> None:
    with pytest.raises(ShapeError, match="choose 1 to 4"):
        facility_location(torch.randn(1, 4, 2), 5)
    with pytest.raises(SettingError, match="not both"):
        facility_location(torch.randn(1, 4, 2), 2, similarity=torch.rand(1, 4, 4))
    with pytest.raises(SettingError, match="either tokens or similarity"):
        facility_location(count=2)
