"""What the injected functions do: merge, run the untouched layer, unmerge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.engine.arguments import for_merged, have_own_rows, of_sample
from tomadiff.engine.hooks import DATA
from tomadiff.engine.site import Site
from tomadiff.families.base import Mask


def merged_op(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``unmerge(op(merge(x)))`` for attention and feed-forward; text and other inputs pass as they are."""
    site: Site = getattr(self, DATA)
    given = hidden_states.transpose(0, 1) if site.facts.tokens_first else hidden_states
    if not ready_to_merge(site, given, args, kwargs):
        return site.inner(self, hidden_states, *args, **kwargs)
    if site.adapts:
        args, kwargs = for_merged(site, given, args, kwargs)
    head, merged = site.head, site.group.merge(given, site.head)

    def unmerged(tokens: Tensor) -> Tensor:
        whole = site.group.unmerge(tokens, head)
        return whole.transpose(0, 1) if site.facts.tokens_first else whole

    return _map_outputs(site, _computed(site, self, merged, args, kwargs), unmerged)


def merged_block(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``x + unmerge(block(m) − m)`` with ``m = merge(x)``: the residual stream keeps its full length."""
    site: Site = getattr(self, DATA)
    group = site.group
    if not ready_to_merge(site, hidden_states, args, kwargs):
        return site.inner(self, hidden_states, *args, **kwargs)
    if site.adapts:
        args, kwargs = for_merged(site, hidden_states, args, kwargs)
    head, merged = site.head, group.merge(hidden_states, site.head)

    def added(image: Tensor) -> Tensor:
        return group.unmerge_add(image - merged, hidden_states, head)

    return _map_outputs(site, _computed(site, self, merged, args, kwargs), added)


def _computed(site: Site, module: nn.Module, merged: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives for ``merged`` tokens; one sample after the other where their positions differ."""
    if not have_own_rows(site):
        return site.inner(module, merged, *args, **kwargs)
    results = []
    for number, sample in enumerate(merged.split(1)):
        own_args, own_kwargs = of_sample(number, len(merged), site, args, kwargs)
        results.append(site.inner(module, sample, *own_args, **own_kwargs))
    if isinstance(results[0], Tensor):
        return torch.cat(results)
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


def planning_block(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Renew the plan from the block's own input, and run the block as it is: the ops inside merge."""
    site: Site = getattr(self, DATA)
    ready_to_merge(site, hidden_states, args, kwargs)
    return site.inner(self, hidden_states, *args, **kwargs)


def _map_outputs(site: Site, result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``change(item)`` instead of every image-length item of what a call returned."""
    if isinstance(result, Tensor):
        return change(result)
    return tuple(change(item) if place in site.facts.outputs else item for place, item in enumerate(result))


# ---------------------------------------------------------------------------------------------- when not to merge
def ready_to_merge(site: Site, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call merges, with its plan brought up to date; if not, the reason is noted."""
    group = site.group
    if not group.active or (site.facts.serves_text and not site.fits(tokens.shape)):
        return False
    reason = _unsafe(site, tokens, args, kwargs)
    if reason is None:
        _renew_if_due(site, tokens)
        reason = _misfit(site, tokens)
    if reason is None and kwargs.get(site.facts.whole) is not None and have_own_rows(site):
        reason = f"samples have destinations of their own, and {site.facts.whole} belongs to the whole batch"
    if reason is not None and not torch.compiler.is_compiling():
        group.note_bypass(site.name, reason)
    return reason is None and site.profitable


def _renew_if_due(site: Site, tokens: Tensor) -> None:
    group = site.group
    if torch.compiler.is_compiling():
        due = site.first_in_group and _misfit(site, tokens) is None
    else:  # a cache may skip the first site, or it may be unsafe: the first that runs plans
        due = (site.first_in_group or group.is_stale()) and site.fits(tokens.shape) and len(tokens) == group.batch
    if due:
        group.renew(_as_first_op_sees(site, tokens))


def _as_first_op_sees(site: Site, tokens: Tensor) -> Tensor:
    """Plans are made from normalised tokens of the image; a whole block is given them before its first norm."""
    tokens = tokens[:, site.head :] if site.head else tokens
    return tokens if site.kind != "block" else torch.nn.functional.layer_norm(tokens, tokens.shape[-1:])


def _unsafe(site: Site, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why merged tokens would give wrong results here, if they would."""
    if torch.is_grad_enabled() and (site.group.needs_grad or tokens.requires_grad):
        return "gradients are enabled (run inside torch.no_grad() to merge)"
    mask = kwargs.get("attention_mask")
    if site.kind in ("attention", "block", "pooled") and mask is not None and not _follows(site, mask):
        return "a self-attention mask is given"
    nested = kwargs.get("cross_attention_kwargs") or kwargs.get("joint_attention_kwargs") or {}
    if nested.get("attention_mask") is not None:
        return "an attention mask is given"
    if kwargs.get("ip_adapter_masks") is not None or nested.get("ip_adapter_masks") is not None:
        return "ip_adapter_masks are given"
    if site.kind == "block" and any(_is_per_token(value, tokens) for value in (*args, *kwargs.values())):
        return "every token has a timestep of its own"
    if site.kind == "block" and kwargs.get("modulate_index") is not None:
        return "every token has a modulation of its own"
    return "the text is as long as the image, and one module serves both" if site.is_ambiguous else None


def _follows(site: Site, mask: Any) -> bool:
    """Whether a mask can be made to suit merged tokens; one that is no tensor (of flex attention) cannot."""
    return isinstance(mask, Tensor) if isinstance(site.facts.mask, Mask) else site.facts.mask == "text"


def _is_per_token(value: Any, tokens: Tensor) -> bool:
    """Modulation ``(B, N, 6, C)`` as video models use it when single frames are given."""
    return isinstance(value, Tensor) and value.dim() == 4 and value.shape[1] == tokens.shape[1]


def _misfit(site: Site, tokens: Tensor) -> str | None:
    """Why the plan does not serve these tokens, if it does not (chunked feed-forward, unknown token layouts)."""
    plan = site.group.plan
    if plan is None or tokens.dim() != 3 or tokens.shape[1] != sum(site.around) + plan.tokens:
        return "its tokens are not the ones of the grid (chunked feed-forward or an unknown layout)"
    if tokens.shape[0] % plan.batch:
        return "its batch is not the one that was planned for (chunked feed-forward)"
    return None
