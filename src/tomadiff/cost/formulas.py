"""The paper's own estimate (arXiv 2509.10918, appendix D): multiplications of a self-attention block and of merging it.

``width`` is the paper's ``d``, ``tokens`` its ``N`` and ``kept`` its ``D``. Where tokens merge in regions, selection,
weights, merging and unmerging happen in each of them, so their quadratic terms are divided by the number of regions.
"""

from __future__ import annotations


def block(tokens: int, width: int) -> int:
    """``7d²N + 2dN²``: projections and feed-forward, then scores and their use."""
    return 7 * width**2 * tokens + 2 * width * tokens**2


def speed_up(tokens: int, width: int, kept_share: float) -> float:
    """``(7d + 2N) / (7d·r + 2N·r²)`` with ``r = D/N``: of a block, if merging were free."""
    return (7 * width + 2 * tokens) / (7 * width * kept_share + 2 * tokens * kept_share**2)


def selection(tokens: int, width: int, regions: int = 1) -> float:
    """``N²d``: the similarity of all tokens of a region."""
    return tokens**2 * width / regions


def weights(tokens: int, kept: int, width: int, regions: int = 1) -> float:
    """``NDd + Nd``: tokens against destinations, and their norms."""
    return tokens * kept * width / regions + tokens * width


def merge(tokens: int, kept: int, width: int, regions: int = 1) -> float:
    """``NDd``; unmerging by the transpose costs the same."""
    return tokens * kept * width / regions


def merged_block(
    tokens: int, kept: int, width: int, regions: int = 1, ops: int = 1, every: tuple[int, int] = (10, 5)
) -> float:
    """A block on ``kept`` tokens with everything that merging adds: ``ops`` merges and unmerges, and its plan's share.

    ``every`` is after how many steps destinations and weights are renewed; choosing destinations includes weights.
    """
    destinations, weighed = every
    planning = selection(tokens, width, regions) / destinations + weights(tokens, kept, width, regions) / weighed
    return block(kept, width) + 2 * ops * merge(tokens, kept, width, regions) + planning
