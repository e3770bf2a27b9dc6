"""What the other arguments of a call become when its tokens merge: rotary tables lose rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tomadiff.slots import Slot


@dataclass(frozen=True)
class Rotary:
    """Where a call takes its rotary tables from, and which of their rows belong to image tokens.

    Attributes:
        argument: name of the keyword argument.
        position: its place behind ``hidden_states`` where it is given by position, else ``None``.
        axis: the tables' token axis; 0 means they have no batch axis, so a batch shares its destinations.
        tables: ``"all"`` of them hold image rows, or only the ``"first"`` does.
        text_first: whether rows of text tokens come before those of the image.
    """

    argument: str
    position: int | None = None
    axis: int = 0
    tables: Literal["all", "first"] = "all"
    text_first: bool = False


def for_merged(
    slot: Slot, rotary: Rotary | None, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's other arguments, made to suit its merged ``tokens`` ``(B, N + tail, C)``: rotary rows are picked."""
    if rotary is None:
        return args, kwargs
    if kwargs.get(rotary.argument) is not None:
        return args, {**kwargs, rotary.argument: picked_rows(slot, rotary, tokens, kwargs[rotary.argument])}
    place = rotary.position
    if place is not None and len(args) > place and args[place] is not None:
        return (*args[:place], picked_rows(slot, rotary, tokens, args[place]), *args[place + 1 :]), kwargs
    return args, kwargs


def picked_rows(slot: Slot, rotary: Rotary, tokens: Tensor, tables: Any) -> Any:
    """Rotary tables for the merged image ``tokens`` ``(B, N + tail, C)``; rows of other tokens stay."""
    if isinstance(tables, Tensor):
        return _picked_table(slot, rotary, tokens, tables)
    chosen = len(tables) if rotary.tables == "all" else 1
    return tuple(
        _picked_table(slot, rotary, tokens, table) if place < chosen else table for place, table in enumerate(tables)
    )


def _picked_table(slot: Slot, rotary: Rotary, tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of text and tail stay; those of the grid are picked. Models may make their tables on the CPU."""
    plan, axis, table = slot.plan, rotary.axis, table.to(tokens.device)
    assert plan is not None
    before = table.shape[axis] - tokens.shape[1] if rotary.text_first else 0
    sizes = [before, plan.tokens, table.shape[axis] - before - plan.tokens]
    text, image, rest = table.split(sizes, dim=axis)
    picked = plan.pick(image, dim=axis)
    if picked.shape[0] != text.shape[0] and axis > 0:
        text, rest = (part.expand(picked.shape[0], *part.shape[1:]) for part in (text, rest))
    return torch.cat([text, picked, rest], dim=axis) if before or sizes[2] else picked
