"""One wrapped call: a :class:`Site`. Sites that share a plan share a :class:`~tomadiff.engine.group.PlanGroup`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tomadiff.engine.group import PlanGroup
from tomadiff.errors import PatchError
from tomadiff.families.base import Block, Op, OpKind, Rows


def _not_injected(*_: Any) -> Any:
    raise PatchError("This site was never injected.")


SiteKind = OpKind | Literal["block", "plan", "pooled"]


@dataclass
class Site:
    """One wrapped call.

    Attributes:
        group: whose plan it uses.
        name: where it is in the model.
        kind: what it computes.
        facts: what its family says about it.
        first_in_group: whether it is the first of its group to run, and so renews the plan.
        inner: set by :func:`tomadiff.engine.hooks.inject`.
        profitable: whether merging is expected to save time here; see :mod:`tomadiff.cost.guard`.
    """

    group: PlanGroup
    name: str
    kind: SiteKind
    facts: Op | Block
    first_in_group: bool = False
    inner: Callable[..., Any] = _not_injected
    restored_by_deletion: bool = False
    profitable: bool = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Site:
        """A copied model gets sites of its own, with handles of their own."""
        copied = copy.copy(self)
        memo[id(self)] = copied
        for name in ("group", "inner"):
            setattr(copied, name, copy.deepcopy(getattr(self, name), memo))
        return copied

    @property
    def around(self) -> tuple[int, int]:
        """Tokens before and behind the grid in its calls."""
        layout = self.group.layout
        return (0, 0) if layout is None else layout.around(self.facts.sequence)

    @property
    def head(self) -> int:
        """Tokens before the grid in its calls."""
        return self.around[0]

    @property
    def picked(self) -> tuple[Rows, ...]:
        """Arguments with a row for every token, of which rows are picked."""
        return tuple(one for one in (self.facts.rotary, self.facts.mask, *self.facts.rows) if isinstance(one, Rows))

    @property
    def is_ambiguous(self) -> bool:
        """Whether its calls with the text cannot be told from those with the image."""
        grid, layout = self.group.grid, self.group.layout
        return self.facts.serves_text and grid is not None and layout is not None and layout.text == grid.tokens

    @property
    def adapts(self) -> bool:
        """Whether other arguments have to suit merged tokens."""
        more = len(self.facts.again) + len(self.picked)  # torch 2.6 compiles no bool(tuple)
        return self.facts.key_bias is not None or more > 0

    def fits(self, shape: torch.Size) -> bool:
        """Whether ``(B, head + N + tail, C)`` are all tokens of a call: a plan made from some fits no others."""
        grid = self.group.grid
        return grid is not None and len(shape) == 3 and shape[1] == sum(self.around) + grid.tokens
