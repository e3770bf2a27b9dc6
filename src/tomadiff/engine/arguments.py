"""What the other arguments of a call become when its tokens merge: tables and masks lose rows, keys get a bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tomadiff.engine.site import Site
from tomadiff.families.base import Rows
from tomadiff.merging.plan import MergePlan, repeat_to
from tomadiff.merging.quota import AllottedPlan

_SMALLEST = 1e-3  # a merged token that nobody joined still has a key


def for_merged(
    site: Site, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's other arguments, made to suit its merged ``tokens`` ``(B, head + N + tail, C)``."""
    group = site.group
    for rows in site.picked:
        args, kwargs = _with_picked_rows(site, rows, tokens, args, kwargs)
    if site.facts.again:
        given = {name: kwargs[name] for name in site.facts.again if kwargs.get(name) is not None}
        same = {name: group.merge(given[name], site.head) for name in given if given[name].shape == tokens.shape}
        kwargs = {**kwargs, **same}
    if site.facts.key_bias is None or not group.proportional:
        return args, kwargs
    text = kwargs.get("encoder_hidden_states")  # if it is not in one sequence with the tokens
    bias = {"attention_mask": _sizes_of_keys(site, tokens, 0 if text is None else text.shape[1])}
    if site.facts.key_bias == "attention_mask":
        return args, {**kwargs, **bias}
    return args, {**kwargs, site.facts.key_bias: {**(kwargs.get(site.facts.key_bias) or {}), **bias}}


def _sizes_of_keys(site: Site, tokens: Tensor, text: int) -> Tensor:
    """``(B, 1, 1, text + K + tail)`` for proportional attention: the logarithm of how many tokens a key stands for."""
    plan, (head, tail) = site.group.plan, site.around
    assert isinstance(plan, MergePlan | AllottedPlan)
    sizes = plan.sizes if plan.batch == 1 else repeat_to(plan.sizes, tokens.shape[0])
    bias = torch.nn.functional.pad(sizes.clamp_min(_SMALLEST).log(), (text + head, tail))
    return bias[:, None, None].to(tokens.dtype)


def have_own_rows(site: Site) -> bool:
    """Whether samples keep other rows of a table that has no batch axis: then each has a table of its own."""
    plan = site.group.plan
    if plan is None or plan.batch == 1 or plan.shared:
        return False
    return any(rows.axis == 0 for rows in site.picked)


def of_sample(
    number: int, batch: int, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one sample of a batch whose samples have tables of their own."""
    one = slice(number, number + 1)
    tables = [rows for rows in site.picked if rows.axis == 0]

    def own(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[one] if value.dim() and len(value) == batch else value
        if isinstance(value, dict):
            return {name: own(part) for name, part in value.items()}
        return value

    def own_tables(value: Any, rows: Rows) -> Any:
        if isinstance(value, Tensor):
            return value[number]
        chosen = len(value) if rows.tables == "all" else 1
        return tuple(table[number] if place < chosen else table for place, table in enumerate(value))

    places, names = {rows.position: rows for rows in tables}, {rows.argument: rows for rows in tables}
    own_args = [
        own(value) if place not in places or value is None else own_tables(value, places[place])
        for place, value in enumerate(args)
    ]
    own_kwargs = {
        name: own(value) if name not in names or value is None else own_tables(value, names[name])
        for name, value in kwargs.items()
    }
    return tuple(own_args), own_kwargs


def _with_picked_rows(
    site: Site, rows: Rows, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with rows picked by destination in one of them."""
    if kwargs.get(rows.argument) is not None:
        return args, {**kwargs, rows.argument: picked_rows(site, rows, tokens, kwargs[rows.argument])}
    place = rows.position
    if place is not None and len(args) > place and args[place] is not None:
        return (*args[:place], picked_rows(site, rows, tokens, args[place]), *args[place + 1 :]), kwargs
    return args, kwargs


def picked_rows(site: Site, rows: Rows, tokens: Tensor, tables: Any) -> Any:
    """Tables for the merged image ``tokens`` ``(B, head + N + tail, C)``; rows of other tokens stay."""
    if isinstance(tables, Tensor):
        return _picked(site, rows, tokens, tables)
    chosen = len(tables) if rows.tables == "all" else 1
    return tuple(_picked(site, rows, tokens, table) if place < chosen else table for place, table in enumerate(tables))


def _picked(site: Site, rows: Rows, tokens: Tensor, table: Tensor) -> Tensor:
    """Models may make their tables on the CPU."""
    if rows.dims not in (None, table.dim()):
        return table
    axis, table = rows.axis % table.dim(), table.to(tokens.device)
    for one in (axis - 1, axis) if rows.square else (axis,):
        if table.shape[one] > 1:  # else one row serves all tokens
            table = _picked_along(site, rows, tokens, table, one)
    return table


def _picked_along(site: Site, rows: Rows, tokens: Tensor, table: Tensor, axis: int) -> Tensor:
    """Rows of text, head and tail stay; those of the grid are picked."""
    plan = site.group.plan
    assert plan is not None
    before = site.head + (table.shape[axis] - tokens.shape[1] if rows.text_first else 0)
    sizes = [before, plan.tokens, table.shape[axis] - before - plan.tokens]
    text, image, rest = table.split(sizes, dim=axis)
    if axis == 0 and have_own_rows(site):
        return torch.stack([torch.cat([text, image[own], rest]) for own in plan.destinations])
    picked = plan.gather(image, dim=axis)
    if picked.shape[0] != text.shape[0] and axis > 0:
        text, rest = (part.expand(picked.shape[0], *part.shape[1:]) for part in (text, rest))
    return torch.cat([text, picked, rest], dim=axis) if before or sizes[2] else picked
