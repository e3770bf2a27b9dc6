"""Telling operators apart: which compute, how they use a machine, and how many bytes they touch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Kind = Literal["matmul", "batched", "attention", "convolution", "stream", "function", "gather", "scatter"]
"""Operators that use a machine alike: large products, many small products, fused attention, convolutions, reading and
writing in order, the same with a costly function of each number, picking rows, adding or sorting into rows."""
KINDS: tuple[Kind, ...] = get_args(Kind)

LARGE = 32 * 2**20  # bytes: larger results always get fresh memory from the system on Linux (glibc's mmap threshold)
_SMALL = 64  # rows, columns or depth below which a product of a batch is a small one
_NO_KERNEL = (
    "aten::empty",
    "aten::new_empty",
    "aten::detach",
    "aten::_unsafe_view",
    "aten::lift_fresh",
    "aten::_local_scalar_dense",
)
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear")
_SECOND = {"aten::mm": 1, "aten::addmm": 2, "aten::linear": 1, "aten::convolution": 1}  # where weights stand
_BATCHES = ("aten::bmm", "aten::baddbmm")
_FUSED_PRODUCTS = tuple(f"tomadiff::{name}" for name in ("merge", "unmerge_add", "local_plan", "local_choice"))
_FUNCTIONS = {"gelu", "silu", "exp", "sigmoid", "tanh", "softmax", "safe_softmax", "sin", "cos", "pow", "erf", "log"}
_GATHERS = ("aten::gather", "aten::index_select", "aten::index", "aten::embedding", "aten::take")
_SCATTERS = ("scatter", "index_put", "index_add", "sort", "topk", "cummax", "cholesky", "eigh", "linalg_inv")


@dataclass(frozen=True)
class Op:
    """One operator that computes something.

    Attributes:
        kind: how it uses a machine.
        dtype: of its result.
        flops: of a product, of attention or of a convolution; a multiply-add is two.
        moved: bytes it reads and writes.
        fresh: bytes of a result so large that the system hands out new memory for it.
        weights: bytes of the matrix or filters that it multiplies with, which CPUs put in order anew at every call.
    """

    kind: Kind
    dtype: torch.dtype
    flops: int
    moved: int
    fresh: int = 0
    weights: int = 0


def computes(func: Any) -> bool:
    """Views and bookkeeping launch nothing."""
    schema = func._schema
    if schema.name.startswith(_NO_KERNEL):
        return False
    return not any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)


def leaves_reality(given: list[Tensor], made: list[Tensor]) -> bool:
    """Tables that a model reads stay real; on a real device they would not have to be copied to the others."""
    return bool(made) and made[0].is_meta and bool(given) and not any(tensor.is_meta for tensor in given)


def kind_of(func: Any, args: Any) -> Kind:
    """How an operator with these arguments uses a machine."""
    name = func._schema.name
    if name in _PRODUCTS:
        return "matmul"
    if name.startswith("tomadiff::"):
        return "batched" if name in _FUSED_PRODUCTS else "stream"
    if name in _BATCHES:
        return _kind_of_batch(*(args[-2:] if name == "aten::bmm" else args[1:3]))
    if "convolution" in name:
        return "convolution"
    if "scaled_dot_product" in name or "flash_attention" in name:
        return "attention"
    if name in _GATHERS:
        return "gather"
    if any(word in name for word in _SCATTERS):
        return "scatter"
    return "function" if name.removeprefix("aten::").strip("_") in _FUNCTIONS else "stream"


def _kind_of_batch(left: Tensor, right: Tensor) -> Kind:
    return "batched" if min(*left.shape[1:], right.shape[-1]) < _SMALL else "matmul"


def weights_of(func: Any, args: Any) -> int:
    """Bytes of the second matrix of a product, or of a convolution's filters; small products of a batch have none."""
    place = _SECOND.get(func._schema.name)
    return 0 if place is None or len(args) <= place else int(args[place].numel() * args[place].element_size())


def tensors_in(tree: Any) -> list[Tensor]:
    """Every tensor of a nest of arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def size_of(tensors: list[Tensor]) -> int:
    """Bytes in memory: what is repeated by a stride of zero is there once."""
    return sum(
        tensor.element_size()
        * prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0)
        for tensor in tensors
    )


def fresh_bytes(tensors: list[Tensor]) -> int:
    """Bytes of those results that are large."""
    sizes = (tensor.untyped_storage().nbytes() for tensor in tensors)
    return sum(size for size in sizes if size > LARGE)
