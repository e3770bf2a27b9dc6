"""Attention whose image keys and values come from fewer tokens than its queries.

Self-attention of UNets and PixArt takes other keys as ``encoder_hidden_states``. Joint attention (SD3, Flux) has no
such argument, so its few lines are written out here: project, norm, rotate, attend, project.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.engine.arguments import picked_rows
from tomadiff.engine.forward import ready_to_merge
from tomadiff.engine.hooks import DATA
from tomadiff.engine.site import Site


def pooled_op(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention with the queries of all tokens, and the keys and values of the plan's."""
    site: Site = getattr(self, DATA)
    text = _text_before(site, hidden_states)
    image = hidden_states[:, text:]
    if not ready_to_merge(site, image, args, kwargs) or _unknown(self, site, kwargs):
        return site.inner(self, hidden_states, *args, **kwargs)
    if not site.facts.joint:
        return site.inner(self, hidden_states, *args, **{**kwargs, "encoder_hidden_states": site.group.merge(image)})
    return _joint(self, site, hidden_states, text, kwargs)


def _text_before(site: Site, tokens: Tensor) -> int:
    """Text tokens in front of the image, where a call is given both as one sequence (Flux's single blocks)."""
    plan = site.group.plan
    if plan is None or site.facts.rotary is None or not site.facts.rotary.text_first:
        return 0
    return max(0, tokens.shape[1] - plan.tokens - sum(site.around))


def _unknown(attention: Any, site: Site, kwargs: dict[str, Any]) -> bool:
    """Fused projections, image prompts and keys that are given change what attention computes; it stays as it is."""
    given = kwargs.get("ip_hidden_states") is not None or any(kwargs.get(name) is not None for name in site.facts.again)
    return given or bool(getattr(attention, "fused_projections", False))


def _joint(attention: Any, site: Site, tokens: Tensor, text: int, kwargs: dict[str, Any]) -> Any:
    """Joint attention over ``[text | image]``; ``text`` tokens of the sequence itself are text too."""
    context, rotary = kwargs.get("encoder_hidden_states"), kwargs.get("image_rotary_emb")
    few = torch.cat([tokens[:, :text], site.group.merge(tokens[:, text:])], dim=1)
    query = _heads(attention, attention.to_q(tokens), attention.norm_q)
    key = _heads(attention, attention.to_k(few), attention.norm_k)
    value = _heads(attention, attention.to_v(few), None)
    if context is not None:
        query = torch.cat([_heads(attention, attention.add_q_proj(context), attention.norm_added_q), query], dim=1)
        key = torch.cat([_heads(attention, attention.add_k_proj(context), attention.norm_added_k), key], dim=1)
        value = torch.cat([_heads(attention, attention.add_v_proj(context), None), value], dim=1)
    if rotary is not None:
        query, key = _rotated(query, rotary), _rotated(key, _few_rows(site, tokens, text, rotary))
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2).to(tokens.dtype)
    return _outputs(attention, mixed, context)


def _outputs(attention: Any, mixed: Tensor, context: Tensor | None) -> Any:
    """Project back: ``(image, text)``, or one sequence where one came in."""
    if context is None:
        return mixed if getattr(attention, "pre_only", False) else _projected(attention, mixed)
    text, image = mixed.split([context.shape[1], mixed.shape[1] - context.shape[1]], dim=1)
    if not attention.context_pre_only:
        text = attention.to_add_out(text)
    return _projected(attention, image), text


def _projected(attention: Any, tokens: Tensor) -> Tensor:
    out: Tensor = attention.to_out[1](attention.to_out[0](tokens))
    return out


def _heads(attention: Any, projected: Tensor, norm: nn.Module | None) -> Tensor:
    """``(B, S, heads · D)`` → ``(B, S, heads, D)``, normed."""
    split = projected.reshape(*projected.shape[:2], attention.heads, -1)
    return split if norm is None else norm(split)


def _few_rows(site: Site, tokens: Tensor, text: int, tables: Any) -> Any:
    assert site.facts.rotary is not None
    return picked_rows(site, site.facts.rotary, tokens[:, text:], tables)


def _rotated(heads: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn neighbouring pairs of ``(B, S, heads, D)`` by the angles of the tables ``(S, D)``."""
    cosine, sine = (table[None, :, None, :].to(heads.device) for table in tables)
    real, imaginary = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(-2)
    return (heads.float() * cosine + turned * sine).to(heads.dtype)
