"""Making a :class:`~tomadiff.merging.plan.MergePlan`: choose destinations, weigh every token against them.

:func:`choose_destinations` is the costly, discrete part, and may be kept for many denoising steps while
:func:`weigh`, a softmax of each token over the destinations of its region, is renewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tomadiff import kernels as fast
from tomadiff.errors import SettingError
from tomadiff.kernels import Choice as Choice
from tomadiff.merging.grid import Grid, Layout, Regions
from tomadiff.merging.plan import Destinations, MergePlan, Share, by_group, group_count
from tomadiff.merging.quota import AllottedPlan, DensePlan, is_kept, kept_in_all, most_worth, starts_of, worth
from tomadiff.merging.select import Selection, Selector, as_cosines, cosines, inner_products
from tomadiff.merging.unmerge import PULL, UNMERGES, unmerge_matrix

Quota = Literal["equal", "shared"]


@dataclass(frozen=True)
class Similarities:
    """What choosing destinations has computed already, by region.

    Attributes:
        cosine: ``(B, R, k, L)`` of the destinations with all tokens.
        products: ``(B, R, L, L)`` inner products of all tokens.
    """

    cosine: Tensor | None = None
    products: Tensor | None = None


UNKNOWN = Similarities()

TEMPERATURE = 1e-3  # of the softmax over cosines, as in the authors' released code
_LIGHTEST = 1e-6  # a destination that gets no more weight than this stands for itself alone
_NEGLIGIBLE = 1e-9  # a weight that no float32 sum of weights would notice


# ---------------------------------------------------------------------------------------------- destinations
def kept_per_region(ratio: float, layout: Layout) -> int:
    """Destinations per region for ``ratio``: one count for all, no more than the smallest region holds."""
    wish = round((1 - ratio) * layout.grid.tokens / layout.regions)
    return max(1, min(wish, layout.smallest))


def choose_destinations(
    tokens: Tensor,
    grid: Grid,
    ratio: float,
    regions: Regions,
    attention_regions: Regions | None,
    selector: Selector,
    share: Share = "sample",
    passes: int = 1,
    quota: Quota = "equal",
) -> tuple[Destinations, Similarities]:
    """Choose the destinations of ``tokens`` ``(B, N, C)``.

    Args:
        tokens: hidden states in raster order, any float dtype.
        grid: their grid.
        ratio: share of tokens to remove.
        regions: where each destination is chosen.
        attention_regions: where tokens merge; ``None`` means the same regions.
        selector: how (see :mod:`tomadiff.merging.select`).
        share: which samples have the same destinations.
        passes: how many guidance passes the batch stacks (``[uncond, cond]`` is 2); ``share="prompt"`` groups them.
        quota: whether every region keeps equally many, or all share one number (see :mod:`tomadiff.merging.quota`).

    Returns:
        The destinations, and what :func:`weigh` would otherwise compute again (nothing if the attention regions are
        others).
    """
    layout, groups = regions.layout(grid, tokens.device), group_count(tokens.shape[0], share, passes)
    products, cosine, mask = _compared(tokens, layout, groups)
    count = kept_per_region(ratio, layout) if quota == "equal" else layout.length
    selection = selector(_similarity(cosine, groups), count, mask)
    local_index = selection.indices.view(groups, layout.regions, -1)
    rows = None
    if quota == "shared":
        rows = most_worth(_worth(selection, mask, layout, groups), kept_in_all(ratio, layout))
    chosen = Destinations(layout, local_index, groups == 1, rows).repeated(tokens.shape[0])
    if attention_regions is not None and attention_regions != regions:
        return _in_larger_regions(chosen, regions, attention_regions), Similarities()
    return chosen, Similarities(_rows_of(cosine, chosen.local_index), products)


def _worth(selection: Selection, mask: Tensor, layout: Layout, groups: int) -> Tensor:
    """``(G, R, k)`` of the candidates of all regions; ``mask`` ``(G·R, L)`` says which tokens are usable."""
    shape = groups, layout.regions, -1
    real = layout.mask.expand(groups, -1, -1).gather(2, selection.indices.view(shape))
    usable = mask.gather(1, selection.indices).view(shape)
    if selection.gains is None:
        raise SettingError("This selector does not say what a token is worth; add quota='equal'.")
    return worth(selection.gains.view(shape), real, usable)


def _compared(tokens: Tensor, layout: Layout, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """``(B, R, L, L)`` inner products and cosines, and a ``(G·R, L)`` mask as selectors take it."""
    products, lengths = inner_products(layout.split(tokens))
    cosine, usable = as_cosines(products, lengths)
    return products, cosine, by_group(usable & layout.mask, groups).all(0).flatten(0, 1)


def _similarity(cosine: Tensor, groups: int) -> Tensor:
    """``(B, R, L, L)`` → ``(G·R, L, L)`` as selectors take it, from 0 to 1."""
    return (by_group(cosine, groups).mean(0).flatten(0, 1) + 1) / 2


def _in_larger_regions(chosen: Destinations, old_regions: Regions, regions: Regions) -> Destinations:
    """The same destinations, seen from larger regions that each hold equally many of the old ones."""
    old, new = chosen.layout, regions.layout(chosen.layout.grid, chosen.layout.index.device)
    order = _order_by_larger(old_regions, regions, old.grid)
    if order is None:
        raise SettingError(
            f"{regions} cannot hold the selection regions of a {old.grid} grid whole and evenly; "
            "use attention_regions=Whole(), or leave it out to attend inside the selection regions."
        )
    order = order.to(old.index.device)
    indices = old.index.expand(len(chosen.local_index), -1, -1).gather(2, chosen.local_index)[:, order]
    local_index = (new.inverse[indices] % new.length).reshape(len(indices), new.regions, -1)
    return Destinations(new, local_index, chosen.shared)


def _order_by_larger(regions: Regions, larger: Regions, grid: Grid) -> Tensor | None:
    """The old regions in the order of the new ones that hold them; ``None`` if some do not fit whole and evenly."""
    old, new = regions.layout(grid), larger.layout(grid)  # on the CPU: it depends on no data
    home = new.inverse[old.index] // new.length  # (R_old, L_old): new region of every place
    whole = bool((home == home[:, :1]).all())
    even = old.regions % new.regions == 0 and bool((home[:, 0].bincount() == old.regions // new.regions).all())
    return home[:, 0].argsort(stable=True) if whole and even else None


# ---------------------------------------------------------------------------------------------- weights
def weigh(
    tokens: Tensor,
    chosen: Destinations,
    unmerge: str = "transpose",
    known: Similarities = UNKNOWN,
    kernels: Choice = "auto",
    temperature: float = TEMPERATURE,
) -> DensePlan:
    """Make the plan that merges ``tokens`` ``(B, N, C)`` into ``chosen``; float32 inside, kept in the tokens' dtype.

    ``known`` is not computed again. ``kernels`` says whether plain torch merges with the plan, or equals of it
    made for GPUs (see :mod:`tomadiff.kernels`).
    """
    layout, kept = chosen.layout, None
    fits, cosine, products = UNMERGES[unmerge].needs_products, known.cosine, known.products
    if fits and products is None:
        products, lengths = inner_products(layout.split(tokens))
        cosine, _ = as_cosines(_rows_of(products, chosen.local_index), lengths, chosen.local_index)
    elif cosine is None:
        cosine, _ = cosines(layout.split(tokens), chosen.local_index)
    logits = cosine / temperature
    if chosen.rows is not None:
        kept = is_kept(chosen.rows, chosen.local_index[0].numel()).view(chosen.local_index.shape)[..., None]
        cosine, logits = cosine.masked_fill(~kept, -1.0), logits.masked_fill(~kept, float("-inf"))
    weights = _weights(logits, layout.mask)
    sizes = weights.sum(-1)
    own = torch.zeros_like(weights).scatter_(-1, chosen.local_index[..., None], 1.0)
    merge = _normalised(weights, sizes, own)
    merge = merge if kept is None else merge * kept
    plan = MergePlan(
        layout,
        chosen.local_index,
        merge.to(tokens.dtype),
        unmerge_matrix(weights, merge, unmerge, products if fits else None, kept).to(tokens.dtype),
        sizes.flatten(1).to(tokens.dtype),
        _coverage(cosine, layout),
        chosen.shared,
        fused=merges_by_kernel(kernels, layout, tokens.device, tokens.dtype),
    )
    return plan if chosen.rows is None else AllottedPlan.of(plan, chosen.rows)


def merges_by_kernel(kernels: Choice, layout: Layout, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels merge and unmerge, whoever made the matrices."""
    return fast.fused(kernels, device, dtype, layout.length)


def fits_in_one_launch(kernels: Choice, tokens: Tensor, layout: Layout) -> bool:
    """Whether :func:`local_plan` may plan for ``tokens`` ``(B, N, C)``; plain torch plans in longer regions."""
    long = layout.length > fast.LONGEST_PLANNED
    missing = f"plans in regions of more than {fast.LONGEST_PLANNED} tokens" if long else None
    return fast.fused(kernels, tokens.device, tokens.dtype, layout.length, missing=missing)


def local_plan(
    tokens: Tensor,
    layout: Layout,
    count: int,
    groups: int,
    unmerge: str,
    local_index: Tensor | None = None,
    rows: Tensor | None = None,
) -> DensePlan:
    """:func:`choose_destinations` by facility location and :func:`weigh` in one launch, two where samples share.

    Args:
        tokens: ``(B, N, C)`` in raster order.
        layout: the regions.
        count: destinations of each.
        groups: of samples that share their destinations.
        unmerge: ``"transpose"`` or ``"least-squares"``.
        local_index: ``(B, R, k)`` of destinations that are known, to be weighed alone.
        rows: ``(B, K)`` those of them that are kept; ``None`` keeps all.
    """
    alone, pull = groups if local_index is None else tokens.shape[0], PULL if unmerge == "least-squares" else None
    starts = None if rows is None else starts_of(rows, layout.regions, count)
    found, merge, spread, sizes, near = fast.local_plan(
        tokens, layout.index, layout.mask, local_index, alone, count, TEMPERATURE, pull, starts
    )
    plan = MergePlan(layout, found, merge, spread, sizes.flatten(1), near.sum(-1), groups == 1, fused=True)
    return plan if rows is None else AllottedPlan.of(plan, rows, starts)


def shared_plan(tokens: Tensor, layout: Layout, ratio: float, groups: int, unmerge: str) -> DensePlan:
    """As :func:`local_plan`, where regions share one number of destinations: two launches, and a sort between them."""
    local_index, value = fast.local_choice(tokens, layout.index, layout.mask, groups)
    rows = most_worth(value, kept_in_all(ratio, layout))
    return local_plan(tokens, layout, layout.length, groups, unmerge, local_index, rows)


def _weights(logits: Tensor, mask: Tensor) -> Tensor:
    """``(B, R, k, L)`` columns of real tokens sum to one, those of padding are zero.

    Weights too small to matter become exact zeros: a sharp softmax leaves subnormal numbers behind, which make every
    product with them many times slower on a CPU.
    """
    return torch.nn.functional.threshold(torch.softmax(logits, dim=-2), _NEGLIGIBLE, 0.0) * mask[:, None, :]


def _normalised(weights: Tensor, sizes: Tensor, own: Tensor) -> Tensor:
    """Rows of ``weights`` ``(B, R, k, L)`` divided by their sizes; one without weight stands for its ``own``."""
    return torch.where(sizes[..., None] > _LIGHTEST, weights / sizes[..., None].clamp_min(_LIGHTEST), own)


def _coverage(cosine: Tensor, layout: Layout) -> Tensor:
    """``(B,)`` mean over real tokens of the best ``(cos + 1) / 2``, of cosines ``(B, R, k, L)``."""
    best = (cosine.amax(-2) * layout.mask).sum((-1, -2))
    return best * (0.5 / layout.grid.tokens) + 0.5


def _rows_of(matrices: Tensor, local_index: Tensor) -> Tensor:
    """``(B, R, L, L)``, ``(B, R, k)`` → ``(B, R, k, L)``."""
    return matrices.gather(2, local_index[..., None].expand(*local_index.shape, matrices.shape[-1]))
