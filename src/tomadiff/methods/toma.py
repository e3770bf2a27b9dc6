"""ToMA, token merge with attention (arXiv 2509.10918): facility location chooses, a softmax merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from tomadiff.errors import SettingError, ShapeError, require_count
from tomadiff.merging.grid import AnyRegions, ByRegion, Grid, Layout, Stripes, Tiles, Whole
from tomadiff.merging.plan import Destinations, MergePlan, group_count
from tomadiff.merging.quota import DensePlan
from tomadiff.merging.select import BLIND, SELECTORS, AnySelector, Selector, random
from tomadiff.merging.unmerge import Unmerge
from tomadiff.merging.weights import (
    UNKNOWN,
    Choice,
    Quota,
    Similarities,
    choose_destinations,
    fits_in_one_launch,
    kept_per_region,
    local_plan,
    merges_by_kernel,
    shared_plan,
    weigh,
)
from tomadiff.methods.base import Method, Scope
from tomadiff.steps.schedule import Schedule

_WITH_KERNELS = {
    "selector": ("facility_location",),
    "unmerge": ("least-squares", "transpose"),
}

_MOST_NUMBERS = 2**30  # in the matrix of one plan and sample: whole grids of up to 46,000 tokens at ratio .5


@dataclass(frozen=True)
class ToMA(Method):
    """Merge near-equal tokens with nothing but matrix products.

    The algorithm is the paper's: facility location chooses destinations inside regions, a softmax over them merges.
    Two defaults are our own, because they stay nearer to the unmerged image (see docs/method.md): every block makes a
    plan of its own at every step, and unmerging is a least-squares fit. :meth:`paper` has the settings of the paper.

    What matters most:
        ``ratio``: share of tokens removed.
        ``regions``: where destinations are chosen; ``Tiles(4)`` is the paper's 256 tiles on 4096 tokens.

    To tinker with (and see :class:`~tomadiff.methods.base.Method` for what all methods share):

    Attributes:
        regions: selection regions.
        attention_regions: where tokens merge; ``None`` means the selection regions, ``Whole()`` the full grid.
        quota: ``"equal"`` keeps equally many tokens in every region, as the paper does; ``"shared"`` keeps more of them
            where tokens differ and fewer where they are alike, equally many in all. ``None`` takes what suits the model
            family: shared on Flux, else equal.
        proportional: proportional attention, where text and merged tokens attend to each other (Flux): the key of a
            merged token counts for as many tokens as it stands for. ``None`` takes what suits the family. It is a mask
            to attention; with backends that take none (Flash, Sage), keys count once.
        unmerge: ``"transpose"`` copies back by weight, ``"pseudo-inverse"`` inverts the merge as well as possible,
            ``"least-squares"`` spreads what comes back the way the tokens themselves are spread.
        selector: name of a selector in :mod:`tomadiff.merging.select`, or a function of its type.
        kernels: ``"auto"`` plans and merges with Triton kernels on a GPU that has them and with plain torch elsewhere;
            ``"triton"`` insists on them, ``"torch"`` does without.
    """

    _: KW_ONLY
    regions: AnyRegions = Tiles(4)  # noqa: RUF009 - frozen, so one instance may serve all
    attention_regions: AnyRegions | None = None
    quota: Quota | None = None
    proportional: bool | None = None
    unmerge: Unmerge = "least-squares"
    selector: AnySelector = "facility_location"
    scope: Scope = "block"
    kernels: Choice = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_quota()
        self._require_kernels()

    def _require_quota(self) -> None:
        if self.quota != "shared":
            return
        if not self._is_local:
            raise SettingError("attention_regions need equally many destinations everywhere; add quota='equal'.")
        if self.selector in BLIND:
            raise SettingError(f"selector={self.selector!r} does not say what a token is worth; add quota='equal'.")

    def completed_by(self, defaults: Mapping[str, Any]) -> Self:
        """See :meth:`Method.completed_by`; a quota that cannot be shared stays equal."""
        shareable = self._is_local and self.selector not in BLIND
        return super().completed_by({name: defaults[name] for name in defaults if shareable or name != "quota"})

    def _require_kernels(self) -> None:
        """With ``kernels="triton"``, a setting without a kernel raises at once."""
        if self.kernels != "triton":
            return
        for name, values in _WITH_KERNELS.items():
            if getattr(self, name) not in values:
                raise SettingError(
                    f"There is no kernel for {name}={getattr(self, name)!r}; leave out kernels='triton', or take "
                    f"{name}={values[0]!r} (ToMA() and ToMA.tile() have kernels for all they do)."
                )
        if not self._is_local:
            raise SettingError("There is no kernel for attention_regions; leave them or kernels='triton' out.")

    @classmethod
    def paper(cls, ratio: float = 0.5) -> ToMA:
        """The paper's settings by one name, whatever our own defaults are: plans shared, results copied back."""
        return cls(
            ratio, regions=Tiles(4), attention_regions=None, quota="equal", proportional=False,
            unmerge="transpose", selector="facility_location", span="op", scope="level",
        )  # fmt: skip

    @classmethod
    def tile(cls, ratio: float = 0.5, **settings: Any) -> ToMA:
        """The paper's best images: selection and attention in tiles of 4×4."""
        return replace(cls.paper(ratio), **settings)

    @classmethod
    def stripe(cls, ratio: float = 0.5, **settings: Any) -> ToMA:
        """The paper's variant without reordering: selection and attention in runs of 16 tokens."""
        return replace(cls.paper(ratio), **{"regions": Stripes(16), **settings})

    @classmethod
    def whole(cls, ratio: float = 0.5, **settings: Any) -> ToMA:
        """The "ToMA" of the paper's section 5.2.1: selection in tiles, attention over the whole grid."""
        return replace(cls.paper(ratio), **{"attention_regions": Whole(), **settings})

    @classmethod
    def stripe_whole(cls, ratio: float = 0.5, **settings: Any) -> ToMA:
        """The "ToMA" of the paper's section 5.1: selection in runs of 16 tokens, attention over the whole grid."""
        return replace(cls.stripe(ratio), **{"attention_regions": Whole(), **settings})

    @classmethod
    def once(cls, ratio: float = 0.5, **settings: Any) -> ToMA:
        """The paper's ToMA*: merged once around each block."""
        return replace(cls.paper(ratio), **{"span": "block", **settings})

    @property
    def schedule(self) -> Schedule:
        """Plans of single blocks are new at every step; shared ones are kept for as long as in the paper."""
        return Schedule(1, 1) if self.scope == "block" else Schedule(10, 5)

    @property
    def local_regions(self) -> AnyRegions | None:
        """See :attr:`Method.local_regions`: equally many destinations in every region, and tokens merge there."""
        apart = self._is_local and self.quota != "shared" and not self.proportional
        return self.regions if apart and self.selector != "random" else None

    @property
    def is_proportional(self) -> bool:
        """See :attr:`Method.is_proportional`."""
        return bool(self.proportional)

    def token_order(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Layout | None:
        """See :meth:`Method.token_order`: tiles that cut the grid evenly, unless kernels read them where they lie."""
        layout = self.regions.layout(grid, device)
        torn = self._is_local and layout.tile is not None
        return layout if torn and not merges_by_kernel(self.kernels, layout, device, dtype) else None

    def by_region(self) -> ToMA:
        """See :meth:`Method.by_region`."""
        return replace(self, regions=ByRegion(self.regions), attention_regions=None)

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,
        passes: int = 1,
        generator: torch.Generator | None = None,
        depth: float = 1.0,  # noqa: ARG002 - every block is planned alike
    ) -> DensePlan:
        """Plan the merge of ``tokens`` ``(B, N, C)`` on ``grid``; needs no model. See :meth:`Method.plan`."""
        _require_tokens(tokens, grid)
        require_count("passes", passes)
        ratio = self.ratio if ratio is None else ratio
        if ratio == 0:
            return MergePlan.identity(grid, dtype=tokens.dtype, device=tokens.device)
        selector = self._selector(generator, grid)
        layout = self.regions.layout(grid, tokens.device)
        _require_memory(layout if self._is_local else (self.attention_regions or self.regions).layout(grid), ratio)
        with torch.no_grad():
            if self._plans_at_once(tokens, layout):
                groups = group_count(tokens.shape[0], self.share, passes)
                if self.quota == "shared":
                    return shared_plan(tokens, layout, ratio, groups, self.unmerge)
                return local_plan(tokens, layout, kept_per_region(ratio, layout), groups, self.unmerge)
            chosen, known = choose_destinations(
                tokens,
                grid,
                ratio,
                self.regions,
                self.attention_regions,
                selector,
                self.share,
                passes,
                self.quota or "equal",
            )
            return self._weigh(tokens, chosen, known)

    @property
    def _is_local(self) -> bool:
        return self.attention_regions in (None, self.regions)

    def _plans_at_once(self, tokens: Tensor, layout: Layout) -> bool:
        """Whether one kernel makes the whole plan."""
        has_kernel = all(getattr(self, name) in values for name, values in _WITH_KERNELS.items())
        return has_kernel and self._is_local and fits_in_one_launch(self.kernels, tokens, layout)

    def _selector(self, generator: torch.Generator | None, grid: Grid) -> Selector:
        if self.selector == "random":
            rng, regions = generator or torch.Generator().manual_seed(self.seed), self.regions.layout(grid).regions
            return partial(random, generator=rng, sample=regions)
        return self.selector if callable(self.selector) else SELECTORS[self.selector]

    def reweigh(self, plan: DensePlan, tokens: Tensor) -> DensePlan:
        """Keep the destinations of ``plan`` and renew its weights from ``tokens`` ``(B, N, C)``."""
        _require_tokens(tokens, plan.grid)
        chosen = plan.chosen.repeated(tokens.shape[0])
        with torch.no_grad():
            if self._plans_at_once(tokens, chosen.layout):
                groups, count = 1 if chosen.shared else len(tokens), chosen.local_index.shape[-1]
                return local_plan(tokens, chosen.layout, count, groups, self.unmerge, chosen.local_index, chosen.rows)
            return self._weigh(tokens, chosen)

    def _weigh(self, tokens: Tensor, chosen: Destinations, known: Similarities = UNKNOWN) -> DensePlan:
        return weigh(tokens, chosen, self.unmerge, known, self.kernels)


def _require_memory(layout: Layout, ratio: float) -> None:
    """A plan holds a matrix of destinations by tokens for every region, which of a large region no GPU can hold."""
    numbers = (1 - ratio) * layout.regions * layout.length**2
    if numbers > _MOST_NUMBERS:
        raise SettingError(
            f"Regions of {layout.length} tokens would make plans of {numbers / 2**29:.1f} GiB in half precision on a "
            f"{layout.grid} grid; take smaller ones, such as Tiles(4), Stripes(64) or Tiles(count=16)."
        )


def _require_tokens(tokens: Tensor, grid: Grid) -> None:
    if tokens.dim() != 3 or tokens.shape[1] != grid.tokens or not tokens.is_floating_point():
        raise ShapeError(
            f"Got {tokens.dtype} tokens of shape {tuple(tokens.shape)}; a {grid} grid needs floats of shape "
            f"(batch, {grid.tokens}, channels)."
        )
