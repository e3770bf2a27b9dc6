"""Calls that are left out at some steps of a run: what they gave last is added again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tomadiff.engine.forward import merged_block, merged_op
from tomadiff.engine.hooks import DATA
from tomadiff.engine.site import Site


def reusing_op(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """As :func:`merged_op` at some steps of a run; at the others, what the op gave last in the same pass."""
    site: Site = getattr(self, DATA)
    group = site.group
    if site.serves_text and (site.is_ambiguous or not site.fits(hidden_states.shape)):
        return merged_op(self, hidden_states, *args, **kwargs)
    if group.reuses:
        result = site.last.get(group.pass_index)
        if result is not None and _first_tensor(result).shape[:2] == hidden_states.shape[:2]:
            return result
    result = merged_op(self, hidden_states, *args, **kwargs)
    _keep(site, result)
    return result


def reusing_block(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """As :func:`merged_block` at some steps of a run; at the others, what the block added last in the same pass.

    A block that also returns the text (or audio) adds to that as well.
    """
    site: Site = getattr(self, DATA)
    group = site.group
    text: Any = kwargs.get(site.second, args[0] if args else None)
    if group.reuses:
        added = site.last.get(group.pass_index)
        if added is not None and _goes_on(site, added, hidden_states, text):
            return _by_stream(site, added, hidden_states, text, Tensor.add)
    result = merged_block(self, hidden_states, *args, **kwargs)
    if _goes_on(site, result, hidden_states, text):
        _keep(site, _by_stream(site, result, hidden_states, text, Tensor.sub))
    return result


def _keep(site: Site, result: Any) -> None:
    if not _first_tensor(result).requires_grad:  # else its graph would outlive the call
        site.last[site.group.pass_index] = result


def _first_tensor(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else next(item for item in result if isinstance(item, Tensor))


def _by_stream(
    site: Site, items: Any, hidden_states: Tensor, text: Tensor, change: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """``change(item, input)`` of every tensor that a block returns, with the input that it continues."""
    if isinstance(items, Tensor):
        return change(items, hidden_states)
    streams = (hidden_states if place in site.outputs else text for place in range(len(items)))
    return tuple(None if item is None else change(item, given) for item, given in zip(items, streams, strict=True))


def _goes_on(site: Site, items: Any, hidden_states: Tensor, text: object) -> bool:
    """Whether every item has the shape of the input that it continues; a chunk or another batch has not."""
    if isinstance(items, Tensor):
        return items.shape == hidden_states.shape
    streams = [hidden_states if place in site.outputs else text for place in range(len(items))]
    return all(
        item is None or (isinstance(given, Tensor) and item.shape == given.shape)
        for item, given in zip(items, streams, strict=True)
    )
