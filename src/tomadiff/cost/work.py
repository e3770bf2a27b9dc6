"""What a wrapped call computes, read off its modules: enough to tell what merging saves there, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import nn

from tomadiff.cost.op import LARGE, Op
from tomadiff.cost.trace import Trace

# Layers inside attention and blocks that do not see the image's tokens: modulation and norms, the text's projections,
# image prompts.
_ASIDE = ("norm", "add_", "to_add_out", "processor", "to_added")
_FUSED = ("to_qkv", "to_kv")  # projections that repeat others, where those are there too
_OF_KEYS = ("to_k", "to_v")


@dataclass(frozen=True)
class Work:
    """What one call does with image tokens.

    Attributes:
        products: ``(in, out)`` of every matrix that each token is multiplied with.
        mixed: channels of every attention among image tokens.
        crossed: channels of every attention to text alone.
        joint: whether text takes part in the former.
        pooled: whether only keys and values become fewer, and ``products`` are theirs alone.
    """

    products: tuple[tuple[int, int], ...]
    mixed: tuple[int, ...] = ()
    crossed: tuple[int, ...] = ()
    joint: bool = False
    pooled: bool = False

    @property
    def width(self) -> int:
        """Channels of the tokens."""
        return self.products[0][0]

    def __add__(self, other: Work) -> Work:
        """Of one call after the other."""
        mixed, crossed = self.mixed + other.mixed, self.crossed + other.crossed
        return replace(self, products=self.products + other.products, mixed=mixed, crossed=crossed)

    def trace(self, batch: int, tokens: int, text: int, dtype: torch.dtype, few: int | None = None) -> Trace:
        """On ``tokens`` image tokens, of which ``few`` are left; ``None``: all of them."""
        left = tokens if few is None else few
        queries, keys = tokens if self.pooled else left, left + (text if self.joint else 0)
        ops = Counter(op for sizes in self.products for op in _product(batch * left, *sizes, dtype))
        ops.update(_attention(batch, queries, keys, width, dtype) for width in self.mixed)
        ops.update(_attention(batch, queries, text, width, dtype) for width in self.crossed)
        return Trace(ops)


def work_of(
    kind: str, module: nn.Module, ops: Sequence[tuple[str, nn.Module]] = (), joint: bool = False
) -> Work | None:
    """What a site of ``kind`` does; ``None`` if the module shows no matrices.

    ``ops`` are the kinds and modules inside a whole block, if they are known; ``joint`` says whether text takes part
    in attention among image tokens.
    """
    parts = ops if kind == "block" and ops else [(kind, module)]
    total = reduce(add, (_work(own, part) for own, part in parts))
    return replace(total, joint=joint) if total.products else None


def _work(kind: str, module: nn.Module) -> Work:
    aside = _ASIDE + _OF_KEYS if kind == "cross_attention" else _ASIDE
    named = list(_linears(module, aside))
    queries = tuple(out for name, (_, out) in named if name == "to_q")
    if queries:
        named = [(name, sizes) for name, sizes in named if not name.startswith(_FUSED)]
    else:  # queries, keys and values in one matrix, with the feed-forward's or without
        queries = tuple(sizes[0] for name, sizes in named if name.startswith(_FUSED))
    if kind == "pooled":
        named = [(name, sizes) for name, sizes in named if name in _OF_KEYS]
    products = tuple(sizes for _, sizes in named)
    if kind == "cross_attention":
        return Work(products, crossed=queries)
    return Work(products, mixed=queries, pooled=kind == "pooled")


def _linears(module: nn.Module, aside: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and sizes of every linear layer, quantised or with adapters on it or not."""
    for name, child in module.named_children():
        if name.startswith(aside):
            continue
        sizes = getattr(child, "in_features", None), getattr(child, "out_features", None)
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            yield name, (sizes[0], sizes[1])
        else:
            yield from _linears(child, aside)


def _product(rows: int, inner: int, outer: int, dtype: torch.dtype) -> Iterator[Op]:
    """A product, and one pass over its result: an activation, a norm, a residual."""
    size = dtype.itemsize
    made = rows * outer * size
    moved = made + (rows * inner + inner * outer) * size
    yield Op("matmul", dtype, 2 * rows * inner * outer, moved, made if made > LARGE else 0, inner * outer * size)
    yield Op("stream", dtype, 0, 2 * made)


def _attention(batch: int, queries: int, keys: int, width: int, dtype: torch.dtype) -> Op:
    moved = 2 * batch * (queries + keys) * width * dtype.itemsize
    return Op("attention", dtype, 4 * batch * queries * keys * width, moved)
