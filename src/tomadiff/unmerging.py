"""From few tokens back to many: the ``(B, R, L, k)`` matrices that undo a merge.

``"transpose"`` hands each token its own share of the destinations it merged into. ``"pseudo-inverse"`` undoes the
averaging as well as a linear map can, whatever the tokens. ``"least-squares"`` looks at the tokens: of all matrices
it takes the one that rebuilds them best from their merged selves, so that what a layer adds to the destinations is
spread the way the tokens themselves are spread between them. ``"regression"`` is the same for tokens that are changes:
one that did not change need not move with its neighbours, so nothing has to sum to one.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from tomadiff.errors import require_choice

Unmerge = Literal["transpose", "pseudo-inverse", "least-squares", "regression"]
UNMERGES: tuple[str, ...] = get_args(Unmerge)
FITTED: tuple[Unmerge, ...] = ("least-squares", "regression")
"""Those that look at the tokens."""

_PINV_CUTOFF = 1e-3  # singular values below this share of the largest are noise of (nearly) equal destinations
_PULL = 0.05  # of least squares towards the transpose, in mean squared lengths of merged tokens; flat from .01 to .3
_WEAK_PULL = 0.01  # of regression, which the transpose says less about
_FACTORISES = ("cpu", "cuda", "xpu", "meta")  # devices with a batched Cholesky factorisation, or that stand for them
_ROUNDS = 16  # of Newton's iteration elsewhere: the pull bounds the condition number, so this many are enough
_RESIDUAL = 1e-3  # of an inverse that can be trusted


def unmerge_matrix(weights: Tensor, merge: Tensor, kind: Unmerge, products: Tensor | None = None) -> Tensor:
    """The matrix ``(B, R, L, k)`` that undoes ``merge``.

    Args:
        weights: ``(B, R, k, L)`` of every token (a column) over the destinations of its region.
        merge: ``(B, R, k, L)`` the same with rows that sum to one.
        kind: which of the ways above.
        products: ``(B, R, L, L)`` inner products of the tokens; the last two look at them, the others do not.
    """
    require_choice("unmerge", kind, UNMERGES)
    if kind == "transpose":
        return weights.transpose(-1, -2).contiguous()  # made contiguous once here instead of at every use
    if kind == "pseudo-inverse":
        inverse: Tensor = torch.linalg.pinv(merge, rtol=_PINV_CUTOFF)
        return inverse
    assert products is not None
    return least_squares(weights, merge, products) if kind == "least-squares" else regression(weights, merge, products)


def least_squares(weights: Tensor, merge: Tensor, products: Tensor, pull: float = _PULL) -> Tensor:
    """The ``U`` ``(B, R, L, k)`` that minimises ``‖X − U·Y‖² + λ‖U − Aᵀ‖²`` with rows that sum to one.

    ``X`` are the tokens, of which only the ``products`` ``X·Xᵀ`` matter, ``Y`` the merged ones, ``A`` the weights;
    ``λ`` is ``pull`` times the mean squared length of ``Y``. The transpose ``Aᵀ`` is itself a candidate, so ``U`` never
    rebuilds the tokens worse than it does. Regions that cannot be solved (tokens too large to square) keep the
    transpose. A destination whose row of ``merge`` is zero is not kept: it gives nothing to anyone.
    """
    kept = _kept(merge)
    free, inverse, solved = _fitted(weights, merge, products, pull)
    shift = inverse.sum(-2, keepdim=True) * kept
    summed = free - (free.sum(-1, keepdim=True) - 1) * (shift / shift.sum(-1, keepdim=True))
    return _where_solved(solved, summed, weights)


def regression(weights: Tensor, merge: Tensor, products: Tensor, pull: float = _WEAK_PULL) -> Tensor:
    """As :func:`least_squares`, without the condition on sums."""
    free, _, solved = _fitted(weights, merge, products, pull)
    return _where_solved(solved, free * _kept(merge), weights)


def _fitted(weights: Tensor, merge: Tensor, products: Tensor, pull: float) -> tuple[Tensor, Tensor, Tensor]:
    """The free minimum ``(B, R, L, k)``, the inverse ``(B, R, k, k)`` behind it, and ``(B, R)`` where there is one."""
    cross = torch.matmul(products, merge.transpose(-1, -2))
    gram = torch.matmul(merge, cross)
    size = (gram.diagonal(dim1=-2, dim2=-1).sum(-1) / _kept(merge).sum((-1, -2)))[..., None, None]
    penalty = pull * torch.where(size > torch.finfo(torch.float32).tiny, size, 1.0)
    inverse, solved = _inverse(gram + penalty * torch.eye(gram.shape[-1], device=gram.device))
    return torch.matmul(cross + penalty * weights.transpose(-1, -2), inverse), inverse, solved


def _kept(merge: Tensor) -> Tensor:
    """``(B, R, 1, k)`` one for destinations that are kept."""
    return (merge != 0).any(-1)[..., None, :].float()


def _where_solved(solved: Tensor, fitted: Tensor, weights: Tensor) -> Tensor:
    """``fitted`` in the regions that could be solved, the transpose in others."""
    solved = solved & fitted.isfinite().flatten(-2).all(-1)
    return torch.where(solved[..., None, None], fitted, weights.transpose(-1, -2)).contiguous()


def _inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses of positive definite matrices ``(…, k, k)``, and ``(…)`` which of them are to be trusted."""
    if matrix.device.type not in _FACTORISES:
        return newton_inverse(matrix)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_inverse(factor), failed == 0


def newton_inverse(matrix: Tensor, rounds: int = _ROUNDS) -> tuple[Tensor, Tensor]:
    """As :func:`_inverse`, by matrix products alone: Newton's iteration ``Z ← Z(2 − M·Z)``."""
    unit = torch.eye(matrix.shape[-1], device=matrix.device)
    largest = matrix.abs().sum(-1).amax(-1)[..., None, None]  # bounds the eigenvalues, so the iteration converges
    inverse = unit / largest
    for _ in range(rounds):
        inverse = torch.matmul(inverse, 2 * unit - torch.matmul(matrix, inverse))
    residual = torch.linalg.matrix_norm(unit - torch.matmul(matrix, inverse))
    return inverse, residual < _RESIDUAL
