"""What a call does, operator by operator: arithmetic, bytes moved, launches, and the most bytes alive at once.

Shapes are enough, so a model on the meta device is traced without weights and without waiting.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula, sdpa_flop_count

from tomadiff import kernels as kernels  # their operators are known once it is imported
from tomadiff.cost.op import Op, computes, fresh_bytes, kind_of, leaves_reality, size_of, tensors_in, weights_of

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """Of one call.

    Attributes:
        flops: FLOPs of matrix products, attention and convolutions; a multiply-add is two.
        launches: operators dispatched that compute something, which on a GPU is about the number of kernels.
        peak_bytes: the most bytes of new tensors that were alive at once.
        moved: bytes read and written by all operators.
    """

    flops: float
    launches: float
    peak_bytes: float
    moved: float = 0.0

    def scaled(self, share: float) -> Cost:
        """Of a share of the call; bytes alive are a peak and do not shrink."""
        return Cost(self.flops * share, self.launches * share, self.peak_bytes, self.moved * share)

    def __add__(self, other: Cost) -> Cost:
        """Of one call after another."""
        peak = max(self.peak_bytes, other.peak_bytes)
        return Cost(self.flops + other.flops, self.launches + other.launches, peak, self.moved + other.moved)


@dataclass
class Trace:
    """Everything that a call did.

    Attributes:
        ops: its operators, and how often each came (a share of a call counts as a share).
        peak: the most bytes of new tensors that were alive at once.
        peak_inside: the same within one call of a watched module, above what was alive when it began.
    """

    ops: Counter[Op] = field(default_factory=Counter)
    peak: int = 0
    peak_inside: int = 0

    @property
    def flops(self) -> float:
        """FLOPs of matrix products, attention and convolutions."""
        return sum(op.flops * times for op, times in self.ops.items())

    @property
    def moved(self) -> float:
        """Bytes read and written."""
        return sum(op.moved * times for op, times in self.ops.items())

    @property
    def launches(self) -> float:
        """Operators that computed something."""
        return sum(self.ops.values())

    def __add__(self, other: Trace) -> Trace:
        """Of one call after another."""
        peaks = max(self.peak, other.peak), max(self.peak_inside, other.peak_inside)
        return Trace(self.ops + other.ops, *peaks)

    def scaled(self, share: float) -> Trace:
        """Of a share of the call; bytes alive are a peak and do not shrink."""
        ops: Counter[Op] = Counter()
        ops.update({op: times * share for op, times in self.ops.items()})
        return Trace(ops, self.peak, self.peak_inside)

    @property
    def cost(self) -> Cost:
        """The sums."""
        return Cost(self.flops, self.launches, self.peak, self.moved)


def trace(call: Callable[[], Any], inside: Iterable[nn.Module] = (), warm: bool = False) -> Trace:
    """Run ``call`` and note what it does.

    Args:
        call: what to run.
        inside: modules whose own peaks of live bytes are noted too.
        warm: run it once before. Tables that are made once and kept then never count, whatever ran earlier.
    """
    tracer = _Tracer()
    with torch.inference_mode(False), torch.no_grad():
        if warm:
            call()
        with tracer, _WholeAttention(tracer), _watched(inside, tracer):
            call()
    return tracer.trace


def cost_of(call: Callable[[], Any]) -> Cost:
    """Run ``call`` and count what it does."""
    return trace(call).cost


def flop_counter() -> FlopCounterMode:
    """Torch's counter, which does not know attention on the CPU by itself."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    known = {getattr(torch.ops.aten, name): _attention_on_cpu} if hasattr(torch.ops.aten, name) else {}
    return FlopCounterMode(display=False, custom_mapping=known)


def _attention_on_cpu(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: Any, **__: Any) -> int:
    """The counter hands over shapes."""
    return int(sdpa_flop_count(query, key, value))


# ---------------------------------------------------------------------------------------------- our kernels
@register_flop_formula(torch.ops.tomadiff.merge)
def _merge_flops(tokens: Shape, matrix: Shape, _: Shape, starts: Shape | None = None, count: int = 0, **__: Any) -> int:
    """Of ``(B, N, C)`` tokens by the rows of a matrix ``(b, R, k, L)``; counters hand over shapes."""
    rows = prod(matrix[1:3]) if starts is None else count
    return 2 * tokens[0] * rows * matrix[3] * tokens[2]


@register_flop_formula(torch.ops.tomadiff.unmerge_add)
def _unmerge_flops(merged: Shape, matrix: Shape, *_: Any, **__: Any) -> int:
    """Of ``(B, K, C)`` merged tokens by the columns of a matrix ``(b, R, L, k)``."""
    return 2 * prod(merged) * matrix[2]


@register_flop_formula(torch.ops.tomadiff.local_plan)
def _local_plan_flops(
    tokens: Shape, index: Shape, _: Shape, places: Shape | None, groups: int, count: int, *__: Any, **___: Any
) -> int:
    """All inner products within regions, once or (where samples share destinations) twice; and those of the fit."""
    samples, width, (regions, length) = tokens[0], tokens[2], index
    times = 2 if places is None and groups < samples else 1
    fit = length * length * count + 2 * length * count * count
    return 2 * samples * regions * (times * length * length * width + fit)


@register_flop_formula(torch.ops.tomadiff.local_choice)
def _local_choice_flops(tokens: Shape, index: Shape, *_: Any, **__: Any) -> int:
    """All inner products within regions."""
    return 2 * tokens[0] * tokens[2] * index[0] * index[1] ** 2


# ---------------------------------------------------------------------------------------------- seeing operators
class _Tracer(TorchDispatchMode):
    """Sees every operator that reaches a device: notes those that compute, and follows the life of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace, self.now = Trace(), 0
        self._held: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, {name: value for name, value in kwargs.items() if name != "out"}))
        before = {_key(tensor) for tensor in tensors_in((args, kwargs))}
        result = func(*args, **kwargs)
        made = tensors_in(result)
        new = [tensor for tensor in made if _key(tensor) not in before and _key(tensor) not in self._held]
        for tensor in new:
            self._follow(tensor.untyped_storage())
        if computes(func) and not leaves_reality(given, made):
            self._note(func, args, kwargs, given, made, new)
        self.trace.peak = max(self.trace.peak, self.now)
        return result

    def _note(
        self, func: Any, args: Any, kwargs: Any, given: list[Tensor], made: list[Tensor], new: list[Tensor]
    ) -> None:
        kind, count = kind_of(func, args), flop_registry.get(func._overloadpacket)
        flops = int(count(*args, **kwargs, out_val=made[0] if len(made) == 1 else made)) if count else 0
        if kind == "attention" and count is None:
            flops = _attention_flops(*args[:3])
        moved = 2 * size_of(made) if kind == "gather" else size_of(given) + size_of(made)
        dtype = made[0].dtype if made else torch.float32
        self.add(Op(kind, dtype, flops, moved, fresh_bytes(new), weights_of(func, args)))

    def add(self, op: Op) -> None:
        """Note an operator."""
        self.trace.ops[op] += 1

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def forget(_: Any) -> None:
            del self._held[key]
            self.now -= size

        self._held[key] = weakref.ref(storage, forget)
        self.now += size


class _WholeAttention(TorchFunctionMode):
    """Keeps attention in one piece on the meta device, where torch would take it apart as no real device does."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        named = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
        query, key, value = (named[name] for name in ("query", "key", "value"))
        if not query.is_meta:
            return func(*args, **kwargs)
        result = _like_fused(query, value.shape[-1])
        moved = size_of([query, key, value, result])
        self.tracer.add(Op("attention", query.dtype, _attention_flops(query, key, value), moved, fresh_bytes([result])))
        return result


def _like_fused(query: Tensor, width: int) -> Tensor:
    """``(B, H, N, width)`` that lies in memory as fused attention leaves it: token by token, not head by head."""
    *batch, heads, tokens, _ = query.shape
    return torch.empty(*batch, tokens, heads, width, dtype=query.dtype, device=query.device).transpose(-2, -3)


def _attention_flops(query: Tensor, key: Tensor, value: Tensor) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


@contextmanager
def _watched(modules: Iterable[nn.Module], tracer: _Tracer) -> Iterator[None]:
    """Note the peak of live bytes inside single calls of ``modules``."""
    found, entered = tracer.trace, []

    def enter(*_: Any) -> None:
        entered.append((tracer.now, found.peak))
        found.peak = tracer.now

    def leave(*_: Any) -> None:
        base, peak = entered.pop()
        found.peak_inside = max(found.peak_inside, found.peak - base)
        found.peak = max(found.peak, peak)

    hooks = [hook for module in modules for hook in _hooked(module, enter, leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooked(module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]) -> tuple[Any, Any]:
    return module.register_forward_pre_hook(enter), module.register_forward_hook(leave)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
