"""What one call costs besides time: operations, kernel launches, and the most bytes alive at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

_NO_KERNEL = ("aten::empty", "aten::detach", "aten::_unsafe_view", "aten::lift_fresh", "aten::_local_scalar_dense")


@dataclass(frozen=True)
class Cost:
    """Of one call.

    Attributes:
        flops: operations of matrix products, attention and convolutions; a multiply-add is two.
        launches: operators dispatched that compute something, which on a GPU is about the number of kernels.
        peak_bytes: the most bytes of new tensors that were alive at once.
    """

    flops: float
    launches: float
    peak_bytes: float

    def scaled(self, share: float) -> Cost:
        """Of a share of the call; bytes are a peak and do not shrink."""
        return Cost(self.flops * share, self.launches * share, self.peak_bytes)

    def __add__(self, other: Cost) -> Cost:
        """Of one call after another."""
        peak = max(self.peak_bytes, other.peak_bytes)
        return Cost(self.flops + other.flops, self.launches + other.launches, peak)


def cost_of(call: Callable[[], Any]) -> Cost:
    """Run ``call`` and count what it does."""
    with torch.no_grad(), flop_counter() as flops, _Dispatches() as seen:
        call()
    return Cost(flops.get_total_flops(), seen.launches, seen.peak)


def flop_counter() -> FlopCounterMode:
    """Torch's counter, which does not know attention on the CPU by itself."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    known = {getattr(torch.ops.aten, name): _attention_on_cpu} if hasattr(torch.ops.aten, name) else {}
    return FlopCounterMode(display=False, custom_mapping=known)


def _attention_on_cpu(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: Any, **__: Any) -> int:
    """The counter hands over shapes."""
    return int(sdpa_flop_count(query, key, value))


class _Dispatches(TorchDispatchMode):
    """Sees every operator that reaches a device: counts those that compute, and follows the life of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = self.now = self.peak = 0
        self._held: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        self.launches += _computes(func)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _key(leaf) not in before and _key(leaf) not in self._held:
                self._follow(leaf.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def forget(_: Any) -> None:
            del self._held[key]
            self.now -= size

        self._held[key] = weakref.ref(storage, forget)
        self.now += size


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _computes(func: Any) -> bool:
    """Views and bookkeeping launch nothing."""
    schema = func._schema
    if schema.name.startswith(_NO_KERNEL):
        return False
    return not any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
