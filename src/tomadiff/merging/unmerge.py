"""From few tokens back to many: the ``(B, R, L, k)`` matrices that undo a merge.

``"transpose"`` hands each token its own share of the destinations it merged into. ``"pseudo-inverse"`` undoes the
averaging as well as a linear map can, whatever the tokens. ``"least-squares"`` looks at the tokens: of all matrices
it takes the one that rebuilds them best from their merged selves, so that what a layer adds to the destinations is
spread the way the tokens themselves are spread between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tomadiff.errors import require_choice
from tomadiff.utils.settings import named

_PINV_CUTOFF = 1e-3  # singular values below this share of the largest are noise of (nearly) equal destinations
PULL = 0.05  # of least squares towards the transpose, in mean squared lengths of merged tokens; flat from .01 to .3
_FACTORISES = ("cpu", "cuda", "xpu", "meta")  # devices with a batched Cholesky factorisation, or that stand for them
_ROUNDS = 16  # of Newton's iteration elsewhere: the pull bounds the condition number, so this many are enough
_RESIDUAL = 1e-3  # of an inverse that can be trusted


@dataclass(frozen=True)
class Unmerging:
    """A way to undo a merge.

    Attributes:
        matrix: ``(weights, merge, products, kept)`` → ``(B, R, L, k)``; see :func:`unmerge_matrix`.
        needs_products: whether it looks at the tokens, through their inner products.
    """

    matrix: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
    needs_products: bool = False


def unmerge_matrix(
    weights: Tensor, merge: Tensor, kind: str, products: Tensor | None = None, kept: Tensor | None = None
) -> Tensor:
    """The matrix ``(B, R, L, k)`` that undoes ``merge``.

    Args:
        weights: ``(B, R, k, L)`` of every token (a column) over the destinations of its region.
        merge: ``(B, R, k, L)`` the same with rows that sum to one.
        kind: a name in :data:`UNMERGES`.
        products: ``(B, R, L, L)`` inner products of the tokens, for those that need them.
        kept: ``(B, R, k, 1)`` false for destinations that are not kept, whose rows of ``merge`` are zero; ``None``
            keeps all.
    """
    require_choice("unmerge", kind, tuple(UNMERGES))
    return UNMERGES[kind].matrix(weights, merge, products, kept)


def _transpose(weights: Tensor, _: Tensor, __: Tensor | None, ___: Tensor | None) -> Tensor:
    return weights.transpose(-1, -2).contiguous()  # made contiguous once here instead of at every use


def _pseudo_inverse(_: Tensor, merge: Tensor, __: Tensor | None, ___: Tensor | None) -> Tensor:
    return pseudo_inverse(merge)


def _least_squares(weights: Tensor, merge: Tensor, products: Tensor | None, kept: Tensor | None) -> Tensor:
    assert products is not None
    return least_squares(weights, merge, products, kept=kept)


UNMERGES = {
    "transpose": Unmerging(_transpose),
    "pseudo-inverse": Unmerging(_pseudo_inverse),
    "least-squares": Unmerging(_least_squares, needs_products=True),
}
"""By name; another one is added here."""

Unmerge = Annotated[str, named(UNMERGES)]


def pseudo_inverse(merge: Tensor) -> Tensor:
    """The Moore-Penrose inverse ``(B, R, L, k)`` of ``merge`` ``(B, R, k, L)``, without singular values that are noise.

    It goes through the eigenvectors of ``merge · mergeᵀ``, in float64: what squaring costs in precision is there to
    spare, and the matrices are smaller than those of an SVD, which in float32 fails to converge now and then.
    """
    place = merge.device if merge.device.type in _FACTORISES else torch.device("cpu")  # others have no float64
    exact = merge.to(place, torch.float64)
    back = exact.transpose(-1, -2)
    return torch.matmul(back, _gram_inverse(torch.matmul(exact, back))).to(merge)


def _gram_inverse(gram: Tensor) -> Tensor:
    """The pseudo-inverse of ``(…, k, k)`` products; should no eigenvectors be found, the inverse with a tiny ridge."""
    try:
        squares, vectors = torch.linalg.eigh(gram)
    except RuntimeError:  # LinAlgError is one
        ridge = (_PINV_CUTOFF**2 / 100) * gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return torch.cholesky_inverse(torch.linalg.cholesky_ex(gram + ridge * unit).L)
    kept = squares > _PINV_CUTOFF**2 * squares[..., -1:]
    return torch.matmul(vectors * torch.where(kept, squares.reciprocal(), 0.0)[..., None, :], vectors.transpose(-1, -2))


def least_squares(
    weights: Tensor, merge: Tensor, products: Tensor, pull: float = PULL, kept: Tensor | None = None
) -> Tensor:
    """The ``U`` ``(B, R, L, k)`` that minimises ``‖X − U·Y‖² + λ‖U − Aᵀ‖²`` with rows that sum to one.

    ``X`` are the tokens, of which only the ``products`` ``X·Xᵀ`` matter, ``Y`` the merged ones, ``A`` the weights;
    ``λ`` is ``pull`` times the mean squared length of ``Y``. The transpose ``Aᵀ`` is itself a candidate, so ``U`` never
    rebuilds the tokens worse than it does. Regions that cannot be solved (tokens too large to square) keep the
    transpose. A destination that is not ``kept`` gives nothing to anyone.
    """
    free, inverse, solved = _fitted(weights, merge, products, pull, kept)
    shift = _of_kept(inverse.sum(-2, keepdim=True), kept)
    summed = free - (free.sum(-1, keepdim=True) - 1) * (shift / shift.sum(-1, keepdim=True))
    return _where_solved(solved, summed, weights)


def _fitted(
    weights: Tensor, merge: Tensor, products: Tensor, pull: float, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The free minimum ``(B, R, L, k)``, the inverse ``(B, R, k, k)`` behind it, and ``(B, R)`` where there is one."""
    cross = torch.matmul(products, merge.transpose(-1, -2))
    gram = torch.matmul(merge, cross)
    squares = gram.diagonal(dim1=-2, dim2=-1)
    size = squares.sum(-1, keepdim=True) / (squares.shape[-1] if kept is None else kept.sum(-2))
    penalty = pull * torch.where(size > torch.finfo(torch.float32).tiny, size, 1.0)
    squares.add_(penalty)
    inverse, solved = _inverse(gram)
    pulled = torch.addcmul(cross, penalty[..., None], weights.transpose(-1, -2))
    return torch.matmul(pulled, inverse), inverse, solved


def _of_kept(columns: Tensor, kept: Tensor | None) -> Tensor:
    """``columns`` ``(B, R, …, k)``, zero for destinations that are not kept."""
    return columns if kept is None else columns * kept.transpose(-1, -2)


def _where_solved(solved: Tensor, fitted: Tensor, weights: Tensor) -> Tensor:
    """``fitted`` in the regions that could be solved, the transpose in others."""
    solved = solved & (fitted.abs().amax((-1, -2)) < torch.inf)  # false for NaN as well
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
