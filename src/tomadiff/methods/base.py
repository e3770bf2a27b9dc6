"""What every method has in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from tomadiff.errors import SettingError, did_you_mean
from tomadiff.merging.grid import AnyRegions, Grid, Layout
from tomadiff.merging.plan import Plan, Share
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.settings import Index, Ratio, Rule, Seed, Settings

Scope = Literal["level", "block"]
Span = Literal["op", "block"]
Levels = Annotated[tuple[Index, ...], Rule("give numbers such as (0, 1), or None for all", bool)]


_OF_APPLY = ("schedule", "preset", "flops", "speedup", "guard", "forecast")
_OTHERS = {  # what other tools call it
    "merge_attn": "merge_attention",
    "merge_crossattn": "merge_cross_attention",
    "merge_mlp": "merge_feed_forward",
    "max_downsample": "levels",
    "amount": "ratio",
    "strength": "ratio",
    "threshold": "forecast",
    "cache_interval": "forecast",
}
_SELDOM = ("share", "merge_attention", "merge_cross_attention", "merge_feed_forward", "plans_from", "seed", "kernels")


@dataclass(frozen=True)
class Method(Settings):
    """Settings of any method: how much merges, where, and who shares a plan.

    Attributes:
        ratio: share of tokens removed; 0.5 keeps half.
        span: merge around every op (``"op"``) or once around a whole block (``"block"``).
        scope: who shares a plan: all blocks that see one grid (``"level"``), or none (``"block"``).
        share: which samples of a batch have the same destinations: none (``"sample"``), the guidance passes of one
            prompt (``"prompt"``), or all (``"batch"``).
        levels: grids to merge, counted from the finest with attention; ``None`` means all.
        skip: how many first blocks stay unmerged; ``None`` means what suits the model family (of Flux, 10 of 57).
        merge_attention: merge around self-attention (or joint attention).
        merge_cross_attention: merge around cross-attention.
        merge_feed_forward: merge around the feed-forward.
        plans_from: make plans from the tokens as a block's first op sees them (``"op"``, after the norm), or as the
            block does (``"block"``).
        seed: of the method's own random choices, if it makes any.
    """

    ratio: Ratio = 0.5
    _: KW_ONLY
    span: Span = "op"
    scope: Scope = "level"
    share: Share = "prompt"
    levels: Levels | None = None
    skip: Index | None = None
    merge_attention: bool = True
    merge_cross_attention: bool = True
    merge_feed_forward: bool = True
    plans_from: Literal["op", "block"] = "op"
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.merge_attention or self.merge_cross_attention or self.merge_feed_forward):
            raise SettingError("Every op is switched off; leave at least one of merge_attention, … on.")

    def __str__(self) -> str:
        """Its name, ratio and settings, in one line; what is off or left open is left out."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _SELDOM}
        told = {name: value for name, value in told.items() if value not in (None, False) and name != "ratio"}
        return ", ".join([f"{type(self).__name__}({self.ratio:g})", *(f"{name} {_plain(told[name])}" for name in told)])

    @property
    def schedule(self) -> Schedule:
        """How long plans are kept unless the user says otherwise."""
        return Schedule(10, 5)

    @property
    def families(self) -> tuple[str, ...] | None:
        """Model families that the method works on; ``None`` means all."""
        return None

    @property
    def pools(self) -> bool:
        """Whether only keys and values of self-attention shrink, instead of all tokens."""
        return False

    @property
    def local_regions(self) -> AnyRegions | None:
        """Regions that plans keep to, so that each may be planned apart; ``None``: all tokens matter to all."""
        return None

    @property
    def is_proportional(self) -> bool:
        """Whether keys of merged tokens count for as many tokens as they stand for, where attention allows it."""
        return False

    def token_order(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Layout | None:  # noqa: ARG002
        """The regions in whose order tokens would spare plans their copies; ``None``: raster order is as good."""
        return None

    def by_region(self) -> Self:
        """The same method for tokens in that :meth:`token_order`."""
        return self

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """With other settings; an unknown name raises with the known ones."""
        known = [field.name for field in fields(self)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            near = _meant(unknown[0], known)
            raise SettingError(f"{type(self).__name__} has no setting {unknown[0]!r}{near}; it has {', '.join(known)}.")
        return replace(self, **changes)

    def completed_by(self, defaults: Mapping[str, Any]) -> Self:
        """With what is left open as ``defaults`` of a model family say."""
        left_open = {one.name for one in fields(self) if getattr(self, one.name) is None}
        return replace(self, **{name: defaults[name] for name in left_open & defaults.keys()})

    def plan(
        self,
        tokens: Tensor,
        grid: Grid,
        *,
        ratio: float | None = None,
        passes: int = 1,
        generator: torch.Generator | None = None,
        depth: float = 1.0,
    ) -> Plan:
        """Plan the merge of ``tokens`` ``(B, N, C)`` on ``grid``.

        Args:
            tokens: in raster order (or in :meth:`token_order`, if it is asked :meth:`by_region`), any float dtype.
            grid: with ``N`` tokens.
            ratio: another share to remove, for schedules; ``None`` takes the method's own.
            passes: guidance passes stacked in the batch, which ``share="prompt"`` treats as one sample.
            generator: where random choices come from; ``None`` starts one from ``seed``.
            depth: where in the model the asking block stands, from 0 (first) to 1.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to plan.")

    def reweigh(self, plan: Any, tokens: Tensor) -> Plan:  # noqa: ARG002 - for those who look
        """Keep the destinations of ``plan`` and renew what depends on ``tokens`` ``(B, N, C)``; default: nothing."""
        kept: Plan = plan
        return kept


def _meant(name: str, known: Collection[str]) -> str:
    """What an unknown setting was meant to be: of a schedule, a forecast or another tool, or mistyped."""
    from tomadiff.steps.forecast import Forecast  # only here: most patches need none

    for kind, word in ((Schedule, "schedule"), (Forecast, "forecast")):
        if name in {one.name for one in fields(kind)}:
            return f" (did you mean {word}={kind.__name__}({name}=…)?)"
    return did_you_mean(_OTHERS.get(name, name), (*known, *_OF_APPLY))


def _plain(value: Any) -> str:
    """A setting as a reader expects it: ``Tiles(4)``, ``Tiles(count=256)``, ``least-squares``, ``(0, 1)``."""
    if value is True:
        return "on"
    if not is_dataclass(value):
        return str(value)
    given = [(one, getattr(value, one.name)) for one in fields(value)]
    said = [f"{one.name}={own}" if place else str(own) for place, (one, own) in enumerate(given) if own != one.default]
    return f"{type(value).__name__}({', '.join(said)})"
