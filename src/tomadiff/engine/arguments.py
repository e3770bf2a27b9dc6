"""What the other arguments of a call become when its tokens merge: rotary tables lose rows, keys get a bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tomadiff.engine.group import PlanGroup
from tomadiff.families.base import KeyBias, Rotary
from tomadiff.merging.plan import MergePlan, Plan, repeat_to
from tomadiff.merging.quota import AllottedPlan

_SMALLEST = 1e-3  # a merged token that nobody joined still has a key


def for_merged(
    group: PlanGroup,
    rotary: Rotary | None,
    key_bias: KeyBias | None,
    tokens: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's other arguments, made to suit its merged ``tokens`` ``(B, N + tail, C)``."""
    if rotary is not None:
        args, kwargs = _with_gathered_rows(group, rotary, tokens, args, kwargs)
    text = kwargs.get("encoder_hidden_states")
    if key_bias is None or not group.proportional or text is None:
        return args, kwargs
    bias = {"attention_mask": _sizes_of_keys(group, tokens, text.shape[1])}
    if key_bias == "attention_mask":
        return args, {**kwargs, **bias}
    return args, {**kwargs, key_bias: {**(kwargs.get(key_bias) or {}), **bias}}


def _sizes_of_keys(group: PlanGroup, tokens: Tensor, text: int) -> Tensor:
    """``(B, 1, 1, text + K + tail)`` for proportional attention: the logarithm of how many tokens a key stands for."""
    plan = group.plan
    assert isinstance(plan, MergePlan | AllottedPlan)
    sizes = plan.sizes if plan.batch == 1 else repeat_to(plan.sizes, tokens.shape[0])
    bias = torch.nn.functional.pad(sizes.clamp_min(_SMALLEST).log(), (text, group.tail))
    return bias[:, None, None].to(tokens.dtype)


def have_own_rows(plan: Plan | None, rotary: Rotary | None) -> bool:
    """Whether samples keep other rows of a table that has no batch axis: then each has a table of its own."""
    return rotary is not None and rotary.axis == 0 and plan is not None and plan.batch > 1 and not plan.shared


def of_sample(
    number: int, batch: int, rotary: Rotary, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one sample of a batch whose samples have rotary tables of their own."""
    one = slice(number, number + 1)

    def own(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[one] if value.dim() and len(value) == batch else value
        if isinstance(value, dict):
            return {name: own(part) for name, part in value.items()}
        return value

    def own_tables(tables: Any) -> Any:
        if isinstance(tables, Tensor):
            return tables[number]
        chosen = len(tables) if rotary.tables == "all" else 1
        return tuple(table[number] if place < chosen else table for place, table in enumerate(tables))

    own_args = [own(value) for value in args]
    if rotary.position is not None and len(args) > rotary.position and args[rotary.position] is not None:
        own_args[rotary.position] = own_tables(args[rotary.position])
    own_kwargs = {name: own(value) for name, value in kwargs.items() if name != rotary.argument}
    if kwargs.get(rotary.argument) is not None:
        own_kwargs[rotary.argument] = own_tables(kwargs[rotary.argument])
    return tuple(own_args), own_kwargs


def _with_gathered_rows(
    group: PlanGroup, rotary: Rotary, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with rotary rows picked by destination."""
    if kwargs.get(rotary.argument) is not None:
        return args, {**kwargs, rotary.argument: gathered_rows(group, rotary, tokens, kwargs[rotary.argument])}
    place = rotary.position
    if place is not None and len(args) > place and args[place] is not None:
        return (*args[:place], gathered_rows(group, rotary, tokens, args[place]), *args[place + 1 :]), kwargs
    return args, kwargs


def gathered_rows(group: PlanGroup, rotary: Rotary, tokens: Tensor, tables: Any) -> Any:
    """Rotary tables for the merged image ``tokens`` ``(B, N + tail, C)``; rows of other tokens stay."""
    if isinstance(tables, Tensor):
        return _gathered_table(group, rotary, tokens, tables)
    chosen = len(tables) if rotary.tables == "all" else 1
    return tuple(
        _gathered_table(group, rotary, tokens, table) if place < chosen else table for place, table in enumerate(tables)
    )


def _gathered_table(group: PlanGroup, rotary: Rotary, tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of text and tail stay; those of the grid are picked. Models may make their tables on the CPU."""
    plan, axis, table = group.plan, rotary.axis, table.to(tokens.device)
    assert plan is not None
    before = table.shape[axis] - tokens.shape[1] if rotary.text_first else 0
    sizes = [before, plan.tokens, table.shape[axis] - before - plan.tokens]
    text, image, rest = table.split(sizes, dim=axis)
    if have_own_rows(plan, rotary):
        return torch.stack([torch.cat([text, image[rows], rest]) for rows in plan.destinations])
    picked = plan.gather(image, dim=axis)
    if picked.shape[0] != text.shape[0] and axis > 0:
        text, rest = (part.expand(picked.shape[0], *part.shape[1:]) for part in (text, rest))
    return torch.cat([text, picked, rest], dim=axis) if before or sizes[2] else picked
