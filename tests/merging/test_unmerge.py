"""What undoes a merge: never worse than the transpose, exact where it can be, calm where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies import grids, local_regions, random_tokens
from tomadiff import Grid, Tiles, ToMA
from tomadiff.merging.grid import Regions
from tomadiff.merging.select import inner_products
from tomadiff.merging.unmerge import least_squares, newton_inverse, pseudo_inverse


def error(tokens: Tensor, grid: Grid, **setting: object) -> float:
    """Length of what merging and unmerging ``tokens`` ``(B, N, C)`` loses."""
    plan = ToMA.tile(**setting).plan(tokens, grid)  # type: ignore[arg-type]
    return float((plan.unmerge(plan.merge(tokens)) - tokens).norm())


# ------------------------------------------------------------------------------ no worse than the transpose
@pytest.mark.parametrize("unmerge", ["pseudo-inverse", "least-squares"])
@settings(max_examples=60)
@given(
    grid=grids(st.integers(2, 14)),
    cut=local_regions(),
    ratio=st.floats(0.01, 0.97),
    seed=st.integers(0, 99),
    duplicates=st.booleans(),
    size=st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
)
def test_reconstructs_no_worse(
    unmerge: str, grid: Grid, cut: Regions, ratio: float, seed: int, duplicates: bool, size: float
) -> None:
    tokens = random_tokens(grid, 2, 8, seed)
    if duplicates:
        tokens[:, 1::2] = tokens[:, 0 : 2 * (grid.tokens // 2) : 2]
    tokens = tokens * size
    setting = dict(ratio=ratio, regions=cut)
    simple = error(tokens, grid, **setting)
    assert error(tokens, grid, **setting, unmerge=unmerge) <= simple + 1e-4 * float(tokens.norm())


@pytest.mark.parametrize("unmerge", ["pseudo-inverse", "least-squares"])
def test_nothing_but_duplicates_come_back(unmerge: str) -> None:
    tokens = torch.ones(1, 16, 4)
    plan = ToMA.tile(0.5, unmerge=unmerge).plan(tokens, Grid(4, 4))  # type: ignore[arg-type]
    assert torch.allclose(plan.unmerge(plan.merge(tokens)), tokens, atol=1e-5)


# ------------------------------------------------------------------------------ pseudo-inverse
def sharp_merge(count: int, tokens: int, seed: int) -> Tensor:
    """A merge matrix ``(1, 1, k, L)`` as the paper's temperature makes them: singular values are few and repeated."""
    units = torch.nn.functional.normalize(torch.randn(tokens, 4, generator=torch.Generator().manual_seed(seed)), dim=-1)
    weights = torch.softmax(units[:count] @ units.T / 1e-3, dim=0)
    weights = torch.where(weights > 1e-9, weights, 0.0)
    return (weights / weights.sum(-1, keepdim=True))[None, None]


def misfit(merge: Tensor, inverse: Tensor) -> float:
    """How far the first two of Penrose's conditions are from holding."""
    forth, back = merge.double(), inverse.double()
    return max(float((forth @ back @ forth - forth).abs().max()), float((back @ forth @ back - back).abs().max()))


@pytest.mark.parametrize("seed", [201, 233])
def test_a_pseudo_inverse_is_found_where_the_svd_in_float32_does_not_converge(seed: int) -> None:
    merge = sharp_merge(256, 512, seed)
    inverse = pseudo_inverse(merge)
    assert inverse.dtype == merge.dtype
    assert misfit(merge, inverse) < 1e-5


def test_the_pseudo_inverse_is_that_of_the_svd_in_float64() -> None:
    merge = torch.cat([sharp_merge(24, 48, seed) for seed in range(20)])
    merge[::2, :, 1] = merge[::2, :, 0]  # duplicates: singular
    wanted = torch.linalg.pinv(merge.double(), rtol=1e-3)
    assert torch.allclose(pseudo_inverse(merge).double(), wanted, atol=1e-6)


def test_a_pseudo_inverse_needs_no_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = sharp_merge(24, 48, 0)
    wanted = pseudo_inverse(merge)

    def fails(_: Tensor) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    assert torch.allclose(pseudo_inverse(merge), wanted, atol=1e-5)
    merge[:, :, 1] = merge[:, :, 0]
    assert misfit(merge, pseudo_inverse(merge)) < 1e-3


# ------------------------------------------------------------------------------ least squares
def test_tokens_between_two_destinations_come_back_between_them() -> None:
    """A ramp of brightness: copying makes steps of it, least squares keeps it a ramp."""
    ramp = torch.linspace(1, 2, 16)[:, None] * torch.tensor([1.0, 0.0]) + torch.tensor([0.0, 1.0])
    grid = Grid(1, 16)
    steps = error(ramp[None], grid, ratio=0.75, regions=Tiles(16))
    smooth = error(ramp[None], grid, ratio=0.75, regions=Tiles(16), unmerge="least-squares")
    assert smooth < 0.5 * steps


def test_every_row_sums_to_one() -> None:
    """A layer that adds the same to every merged token adds the same to every token."""
    tokens = random_tokens(Grid(12, 12), 2, 8, seed=0)
    plan = ToMA.tile(0.5, unmerge="least-squares").plan(tokens, Grid(12, 12))
    assert torch.allclose(plan.unmerge_matrix.sum(-1), torch.tensor(1.0), atol=1e-4)


class Problem:
    """Twelve random tokens that merge into four; ``x``, ``y`` and ``a`` are those of ``least_squares``."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randn(1, 1, 12, 6, generator=generator)
        self.weights = torch.softmax(torch.randn(1, 1, 4, 12, generator=generator), dim=-2)
        self.merge = self.weights / self.weights.sum(-1, keepdim=True)
        self.products = inner_products(tokens)[0]
        self.x, self.a = tokens[0, 0].double().numpy(), self.weights[0, 0].double().numpy()
        self.y = self.merge[0, 0].double().numpy() @ self.x

    def penalty(self, pull: float) -> float:
        return float(pull * np.trace(self.y @ self.y.T) / 4)


def test_it_is_the_constrained_minimum() -> None:
    """Against NumPy: the conditions that a minimum under a constraint must meet, solved as one linear system."""
    given = Problem(seed=0)
    found = least_squares(given.weights, given.merge, given.products, pull=0.05)[0, 0].double().numpy()
    x, y, a, penalty = given.x, given.y, given.a, given.penalty(0.05)
    system = np.block([[y @ y.T + penalty * np.eye(4), np.ones((4, 1))], [np.ones((1, 4)), np.zeros((1, 1))]])
    sides = np.vstack([(x @ y.T + penalty * a.T).T, np.ones((1, 12))])
    assert np.allclose(found, np.linalg.solve(system, sides)[:4].T, atol=1e-5)


def test_tokens_too_large_to_square_keep_the_transpose() -> None:
    tokens = random_tokens(Grid(4, 4), 1, 8, seed=0) * 1e30
    plan, simple = (ToMA.tile(0.5, unmerge=kind).plan(tokens, Grid(4, 4)) for kind in ("least-squares", "transpose"))  # type: ignore[arg-type]
    assert torch.equal(plan.unmerge_matrix, simple.unmerge_matrix)


def test_padding_takes_no_part() -> None:
    """An uneven grid: rows of real tokens are what they would be without padded neighbours."""
    tokens = random_tokens(Grid(5, 7), 1, 8, seed=1)
    plan = ToMA.tile(0.5, regions=Tiles(3), unmerge="least-squares").plan(tokens, Grid(5, 7))
    simple = ToMA.tile(0.5, regions=Tiles(3)).plan(tokens, Grid(5, 7))
    assert plan.layout.padded
    assert (plan.unmerge(plan.merge(tokens)) - tokens).norm() < (simple.unmerge(simple.merge(tokens)) - tokens).norm()


def test_newton_inverts_without_factorising() -> None:
    generator = torch.Generator().manual_seed(0)
    alike = torch.randn(20, 1, 64, generator=generator) + 0.1 * torch.randn(20, 32, 64, generator=generator)
    gram = alike @ alike.transpose(-1, -2)
    gram = gram + 0.05 * gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(32)
    inverse, trusted = newton_inverse(gram)
    assert trusted.all()
    assert torch.allclose(inverse, torch.linalg.inv(gram.double()).float(), rtol=1e-2, atol=1e-3 / float(gram.mean()))
    assert not newton_inverse(torch.full((1, 2, 2), float("inf")))[1].any()
