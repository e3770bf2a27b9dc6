"""One wrapped call: a :class:`Site`. Sites that share a plan share a :class:`~tomadiff.engine.group.PlanGroup`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tomadiff.engine.group import PlanGroup
from tomadiff.errors import PatchError
from tomadiff.families.base import KeyBias, Mask, OpKind, Rotary, Rows


def _not_injected(*_: Any) -> Any:
    raise PatchError("This site was never injected.")


@dataclass
class Site:
    """One wrapped call.

    Attributes:
        group: whose plan it uses.
        name: where it is in the model.
        kind: what it computes.
        first_in_group: whether it is the first of its group to run, and so renews the plan.
        rotary: its rotary tables, if it has any.
        outputs: which items of a tuple it returns are image-length.
        joint: whether it is attention over text and image.
        key_bias: how it takes a bias of its keys, if it does.
        sequence: which tokens it is given; see :attr:`tomadiff.families.base.Op.sequence`.
        mask: its mask, if it may have one.
        rows: other arguments with a row for every token.
        again: arguments that hold the same tokens.
        whole: an argument that belongs to the whole batch.
        serves_text: whether it is called with the text in turn.
        tokens_first: whether tokens come before samples.
        names: what it calls its arguments; see :mod:`tomadiff.engine.hosted`.
        in_place: whether it writes into its tokens.
        inner: set by :func:`tomadiff.engine.hooks.inject`.
        profitable: whether merging is expected to save time here; see :mod:`tomadiff.cost.guard`.
    """

    group: PlanGroup
    name: str
    kind: OpKind | Literal["block", "plan", "pooled"]
    first_in_group: bool = False
    rotary: Rotary | None = None
    outputs: tuple[int, ...] = (0,)
    joint: bool = False
    key_bias: KeyBias | None = None
    inner: Callable[..., Any] = _not_injected
    restored_by_deletion: bool = False
    profitable: bool = True
    sequence: str = ""
    mask: Mask | Literal["text"] | None = None
    rows: tuple[Rows, ...] = ()
    again: tuple[str, ...] = ()
    whole: str = ""
    serves_text: bool = False
    tokens_first: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    in_place: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Site:
        """A copied model gets sites of its own, with handles of their own."""
        copied = copy.copy(self)
        memo[id(self)] = copied
        for name in ("group", "rotary", "inner"):
            setattr(copied, name, copy.deepcopy(getattr(self, name), memo))
        return copied

    @property
    def around(self) -> tuple[int, int]:
        """Tokens before and behind the grid in its calls."""
        layout = self.group.layout
        return (0, 0) if layout is None else layout.around(self.sequence)

    @property
    def head(self) -> int:
        """Tokens before the grid in its calls."""
        return self.around[0]

    @property
    def picked(self) -> tuple[Rows, ...]:
        """Arguments with a row for every token, of which rows are picked."""
        return tuple(one for one in (self.rotary, self.mask, *self.rows) if isinstance(one, Rows))

    @property
    def is_ambiguous(self) -> bool:
        """Whether its calls with the text cannot be told from those with the image."""
        grid, layout = self.group.grid, self.group.layout
        return self.serves_text and grid is not None and layout is not None and layout.text == grid.tokens

    @property
    def adapts(self) -> bool:
        """Whether other arguments have to suit merged tokens."""
        return self.key_bias is not None or len(self.again) + len(self.picked) > 0  # torch 2.6 compiles no bool(tuple)

    def fits(self, shape: torch.Size) -> bool:
        """Whether ``(B, head + N + tail, C)`` are all tokens of a call: a plan made from some fits no others."""
        grid = self.group.grid
        return grid is not None and len(shape) == 3 and shape[1] == sum(self.around) + grid.tokens
