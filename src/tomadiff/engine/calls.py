"""Which calls of a block a method wraps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from tomadiff.engine.arguments import KeyBias, Rotary
from tomadiff.engine.sites import OpKind
from tomadiff.families.base import Block, Op
from tomadiff.methods.base import Method


@dataclass(frozen=True)
class Wrapped:
    """A module to inject, and what its site needs to know; see :class:`tomadiff.engine.sites.Site`."""

    module: nn.Module
    kind: OpKind | Literal["block", "plan", "pooled"]
    path: str = ""
    rotary: Rotary | None = None
    outputs: tuple[int, ...] = (0,)
    joint: bool = False
    key_bias: KeyBias | None = None


def calls_to_wrap(block: nn.Module, described: Block, method: Method) -> Iterator[Wrapped]:
    """The whole block, or the ops that are there and switched on, in the order they run."""
    if method.pools:
        yield from _ops(block, described.ops + described.pooled, ("attention",), pooled=True)
    elif method.span == "block" or not described.ops:
        yield Wrapped(block, "block", "", described.rotary, described.outputs, key_bias=described.key_bias)
    else:
        if method.plans_from == "block":
            yield Wrapped(block, "plan")
        kinds = tuple(op.kind for op in described.ops if getattr(method, f"merge_{op.kind}"))
        yield from _ops(block, described.ops, kinds)


def _ops(block: nn.Module, ops: tuple[Op, ...], kinds: tuple[OpKind, ...], pooled: bool = False) -> Iterator[Wrapped]:
    for op in ops:
        module = getattr(block, op.path, None)
        if isinstance(module, nn.Module) and op.kind in kinds:
            kind: Literal["pooled"] | OpKind = "pooled" if pooled else op.kind
            yield Wrapped(module, kind, f".{op.path}", op.rotary, op.outputs, op.joint, op.key_bias)
