"""The plan of a merge: which tokens stay, and the matrices that merge and unmerge.

Three steps make one: :func:`choose_destinations` (the costly, discrete part), :func:`weigh` (the softmax of each
token over the destinations of its region), and the unmerge matrix. The first may be kept for many denoising steps
while the others are renewed. A :class:`MergePlan` is plain tensors: applying it is one batched matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from tomadiff.errors import SettingError, ShapeError, require_choice
from tomadiff.grid import Grid, Layout, Regions, Stripes
from tomadiff.select import Selector, cosines

Share = Literal["sample", "prompt", "batch"]
Logits = Literal["cosine", "dot"]
Unmerge = Literal["transpose", "pseudo-inverse"]

_LIGHTEST = 1e-6  # a destination that no token weighs more than this stands for itself alone
_NEGLIGIBLE = 1e-9  # a weight that no float32 sum of weights would notice
_PINV_CUTOFF = 1e-3  # singular values below this share of the largest are noise of (nearly) equal destinations


@dataclass(frozen=True)
class Destinations:
    """The kept tokens of a grid, and the regions inside which others merge into them.

    Attributes:
        layout: the regions of the weights (``R`` of at most ``L`` tokens).
        places: ``(B, R, k)`` place of each destination inside its region.
        shared: true if all samples of a batch have the same destinations.
    """

    layout: Layout
    places: Tensor = field(repr=False)
    shared: bool


@dataclass(eq=False)
class MergePlan:
    """How ``N`` tokens of a grid become ``K``, and ``K`` become ``N`` again.

    Attributes:
        layout: the regions (``R`` of at most ``L`` tokens) that tokens merge in.
        places: ``(B, R, k)`` place of each destination inside its region.
        merge_matrix: ``(B, R, k, L)`` rows sum to one.
        unmerge_matrix: ``(B, R, L, k)``.
        mass: ``(B, K)`` how many tokens each merged token stands for.
        coverage: ``(B,)`` mean similarity of a token to its nearest destination, from 0 to 1.
        shared: true if all samples of a batch have the same destinations.
    """

    layout: Layout
    places: Tensor
    merge_matrix: Tensor
    unmerge_matrix: Tensor
    mass: Tensor
    coverage: Tensor
    shared: bool

    @classmethod
    def identity(
        cls, grid: Grid, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> MergePlan:
        """The plan that changes nothing: every token is its own destination, in raster order."""
        layout = Stripes(1).layout(grid, device)
        places = torch.zeros(1, grid.tokens, 1, dtype=torch.long, device=device)
        ones = torch.ones(1, grid.tokens, 1, 1, dtype=dtype, device=device)
        return cls(layout, places, ones, ones.clone(), ones.view(1, -1).clone(), torch.ones(1, device=device), True)

    @property
    def grid(self) -> Grid:
        """The grid the plan is for."""
        return self.layout.grid

    @property
    def chosen(self) -> Destinations:
        """The destinations alone, to keep while weights are renewed."""
        return Destinations(self.layout, self.places, self.shared)

    @property
    def destinations(self) -> Tensor:
        """``(B, K)`` raster index of every destination, in the order of merged tokens."""
        index = self.layout.index.expand(*self.places.shape[:2], -1)
        return index.gather(2, self.places).flatten(1)

    @property
    def tokens(self) -> int:
        """``N``, tokens before merging."""
        return self.grid.tokens

    @property
    def per_region(self) -> int:
        """``k``, destinations per region."""
        return self.places.shape[-1]

    @property
    def kept(self) -> int:
        """``K``, tokens after merging."""
        return self.layout.regions * self.per_region

    @property
    def realised_ratio(self) -> float:
        """Share of tokens that are really removed; rounding to whole tokens per region moves it from the wish."""
        return 1 - self.kept / self.tokens

    @property
    def state(self) -> list[Tensor]:
        """The tensors that change when a plan is renewed, in a fixed order; see :meth:`renew`."""
        return [self.places, self.merge_matrix, self.unmerge_matrix, self.mass, self.coverage]

    def renew(self, state: Sequence[Tensor]) -> None:
        """Take over the :attr:`state` of another plan of the same shapes (compiled code does this in place)."""
        self.places, self.merge_matrix, self.unmerge_matrix, self.mass, self.coverage = state

    def fits(self, other: MergePlan) -> bool:
        """Whether :meth:`renew` may take over the state of ``other``."""
        same = all(
            mine.shape == new.shape and mine.dtype == new.dtype and mine.device == new.device
            for mine, new in zip(self.state, other.state, strict=True)
        )
        return same and self.layout is other.layout and self.shared == other.shared

    @property
    def nbytes(self) -> int:
        """Bytes held by the plan's tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state)

    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N, C)`` → ``(B, K, C)``: weighted averages, region by region."""
        parts = self.layout.split(tokens)
        merged = torch.matmul(_fit(self.merge_matrix, parts.shape[0]), parts)
        return merged.reshape(parts.shape[0], self.kept, parts.shape[-1])

    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K, C)`` → ``(B, N, C)``: every token receives from the destinations it merged into."""
        layout = self.layout
        if merged.shape[1] != self.kept:
            raise ShapeError(f"Got {merged.shape[1]} merged tokens for a plan that keeps {self.kept}.")
        parts = merged.reshape(merged.shape[0], layout.regions, -1, merged.shape[-1])
        return layout.join(torch.matmul(_fit(self.unmerge_matrix, parts.shape[0]), parts))

    def pick(self, table: Tensor, dim: int = 0) -> Tensor:
        """Rows of a positional table that belong to the destinations.

        ``dim`` is the table's token axis. A table with a batch axis before it (``(B or 1, …, N, …)``, ``dim > 0``)
        gives each sample its own rows; a table without one needs destinations shared over the batch.
        """
        if table.shape[dim] != self.tokens:
            raise ShapeError(f"A table with {table.shape[dim]} rows does not fit a grid of {self.tokens} tokens.")
        rows = self.destinations
        if self.shared or rows.shape[0] == 1:
            return table.index_select(dim, rows[0])
        if dim % table.dim() == 0:
            raise SettingError("A table without batch axis needs one set of destinations: use share='batch'.")
        table = table.expand(rows.shape[0], *table.shape[1:])
        return torch.stack(
            [sample.index_select(dim % table.dim() - 1, own) for sample, own in zip(table, rows, strict=True)]
        )

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> MergePlan:
        """The same plan on another device, with its matrices in another dtype."""
        layout = self.layout
        moved = replace(
            layout, index=layout.index.to(device), mask=layout.mask.to(device), inverse=layout.inverse.to(device)
        )
        return MergePlan(
            moved,
            self.places.to(device),
            self.merge_matrix.to(device, dtype),
            self.unmerge_matrix.to(device, dtype),
            self.mass.to(device, dtype),
            self.coverage.to(device),
            self.shared,
        )

    def __repr__(self) -> str:
        layout = self.layout
        return (
            f"MergePlan({self.grid} tokens: {self.tokens} → {self.kept} ({self.realised_ratio:.1%} merged away), "
            f"{layout.regions} regions of {layout.length}, batch {self.merge_matrix.shape[0]}, "
            f"coverage {self.coverage.mean().item():.4f}, {self.nbytes / 1024:.0f} KiB {self.merge_matrix.dtype})"
        )


def _fit(matrix: Tensor, batch: int) -> Tensor:
    """A plan for one sample serves any batch as it is (matmul broadcasts); others are repeated."""
    return matrix if matrix.shape[0] == 1 else repeat_to(matrix, batch)


def repeat_to(tensor: Tensor, batch: int) -> Tensor:
    """Repeat the samples of ``(b, …)`` to a batch of a multiple of ``b``: ``[a, b]`` → ``[a, b, a, b]``."""
    have = tensor.shape[0]
    if have == batch:
        return tensor
    if batch % have:
        raise ShapeError(f"A plan for {have} samples cannot serve a batch of {batch}.")
    return tensor.repeat(batch // have, *[1] * (tensor.dim() - 1))


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
) -> tuple[Destinations, Tensor | None]:
    """Choose the destinations of ``tokens`` ``(B, N, C)``.

    Args:
        tokens: hidden states in raster order, any float dtype.
        grid: their grid.
        ratio: share of tokens to remove.
        regions: where each destination is chosen.
        attention_regions: where tokens merge; ``None`` means the same regions.
        selector: how (see :mod:`tomadiff.select`).
        share: which samples have the same destinations.
        passes: how many guidance passes the batch stacks (``[uncond, cond]`` is 2); ``share="prompt"`` groups them.

    Returns:
        The destinations, and the ``(B, R, k, L)`` cosines between them and all tokens, which :func:`weigh` would
        otherwise compute again (``None`` if the attention regions are others).
    """
    layout = regions.layout(grid, tokens.device)
    cosine, usable = cosines(layout.split(tokens))
    groups = _group_count(tokens.shape[0], share, passes)
    similarity = (_by_group(cosine, groups).mean(0) + 1) / 2
    mask = _by_group(usable & layout.mask, groups).all(0)
    selection = selector(similarity.flatten(0, 1), kept_per_region(ratio, layout), mask.flatten(0, 1))
    places = repeat_to(selection.indices.view(groups, layout.regions, -1), tokens.shape[0])
    chosen = Destinations(layout, places, shared=groups == 1)
    if attention_regions not in (None, regions):
        return _rehouse(chosen, attention_regions), None
    return chosen, cosine.gather(2, places[..., None].expand(*places.shape, cosine.shape[-1]))


def _by_group(samples: Tensor, groups: int) -> Tensor:
    """``(B, …)`` → ``(B/G, G, …)``: samples ``g, g + G, …`` form group ``g``, as guidance stacks its passes."""
    return samples.reshape(-1, groups, *samples.shape[1:])


def _group_count(batch: int, share: Share, passes: int) -> int:
    require_choice("share", share, ("sample", "prompt", "batch"))
    if share == "batch":
        return 1
    if share == "sample":
        return batch
    if batch % passes:
        raise ShapeError(f"A batch of {batch} cannot hold {passes} guidance passes of equal size.")
    return batch // passes


def _rehouse(chosen: Destinations, regions: Regions | None) -> Destinations:
    """The same destinations, seen from larger regions that each hold equally many of the old ones."""
    assert regions is not None
    old, new = chosen.layout, regions.layout(chosen.layout.grid, chosen.layout.index.device)
    home = new.inverse[old.index] // new.length  # (R_old, L_old): new region of every place
    fits = bool((home == home[:, :1]).all()) and bool((home[:, 0].bincount() == old.regions // new.regions).all())
    if not fits:
        raise SettingError(
            f"{regions} cannot hold the selection regions of a {old.grid} grid whole and evenly; "
            "use attention_regions=Whole(), or leave it out to attend inside the selection regions."
        )
    by_home = home[:, 0].argsort(stable=True)
    indices = old.index.expand(len(chosen.places), -1, -1).gather(2, chosen.places)[:, by_home]
    places = (new.inverse[indices] % new.length).reshape(len(indices), new.regions, -1)
    return Destinations(new, places, chosen.shared)


# ---------------------------------------------------------------------------------------------- weights
def weigh(
    tokens: Tensor,
    chosen: Destinations,
    temperature: float = 1e-3,
    logits: Logits = "cosine",
    unmerge: Unmerge = "transpose",
    cosine: Tensor | None = None,
) -> MergePlan:
    """Make the plan that merges ``tokens`` ``(B, N, C)`` into ``chosen``; float32 inside, kept in the tokens' dtype.

    ``cosine`` ``(B, R, k, L)`` may be given where it is known already.
    """
    layout = chosen.layout
    parts = layout.split(tokens) if cosine is None or logits == "dot" else None
    if cosine is None:
        assert parts is not None
        cosine, _ = cosines(parts, chosen.places)
    affinity = cosine if parts is None or logits == "cosine" else _dot_products(parts, chosen.places)
    weights = _weights(affinity / temperature, layout.mask)
    mass = weights.sum(-1)
    merge = _normalised(weights, mass, chosen.places)
    return MergePlan(
        layout,
        chosen.places,
        merge.to(tokens.dtype),
        _unmerge_matrix(weights, merge, unmerge).to(tokens.dtype),
        mass.flatten(1).to(tokens.dtype),
        _coverage(cosine, layout.mask),
        chosen.shared,
    )


def _weights(logits: Tensor, mask: Tensor) -> Tensor:
    """``(B, R, k, L)`` columns of real tokens sum to one, those of padding are zero.

    Weights too small to matter become exact zeros: a sharp softmax leaves subnormal numbers behind, which make every
    product with them many times slower on a CPU.
    """
    return torch.nn.functional.threshold(torch.softmax(logits, dim=-2), _NEGLIGIBLE, 0.0) * mask[:, None, :]


def _dot_products(parts: Tensor, places: Tensor) -> Tensor:
    """The paper's equation 6: raw inner products ``(B, R, k, L)``; non-finite tokens count as zero."""
    clean = torch.where(parts.isfinite().all(-1, keepdim=True), parts.float(), 0.0)
    picked = clean.gather(2, places[..., None].expand(*places.shape, clean.shape[-1]))
    largest = torch.finfo(torch.float32).max / 1e6  # so that no temperature makes it infinite
    return torch.matmul(picked, clean.transpose(-1, -2)).nan_to_num(0.0, largest, -largest).clamp(-largest, largest)


def _normalised(weights: Tensor, mass: Tensor, places: Tensor) -> Tensor:
    """Rows of ``weights`` ``(B, R, k, L)`` divided by their mass; a destination of no mass stands for itself."""
    own = torch.zeros_like(weights).scatter_(-1, places[..., None], 1.0)
    return torch.where(mass[..., None] > _LIGHTEST, weights / mass[..., None].clamp_min(_LIGHTEST), own)


def _unmerge_matrix(weights: Tensor, merge: Tensor, kind: Unmerge) -> Tensor:
    """``(B, R, L, k)``; the transpose is made contiguous once here instead of at every use."""
    require_choice("unmerge", kind, ("transpose", "pseudo-inverse"))
    if kind == "transpose":
        return weights.transpose(-1, -2).contiguous()
    inverse: Tensor = torch.linalg.pinv(merge, rtol=_PINV_CUTOFF)
    return inverse


def _coverage(cosine: Tensor, mask: Tensor) -> Tensor:
    """``(B,)`` mean over real tokens of the best ``(cos + 1) / 2``."""
    best = (cosine.amax(-2) + 1) / 2 * mask
    return torch.sum(best, (-1, -2)) / mask.sum()
