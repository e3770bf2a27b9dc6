"""How fast the machine at hand is: a handful of operators of the sizes that diffusion models use, for a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tomadiff.cost.hardware import Hardware
from tomadiff.cost.machines import USUAL_SHARES, device_name
from tomadiff.cost.op import LARGE
from tomadiff.cost.trace import Trace, trace
from tomadiff.kernels import fused

_LEAST = 1.5e-3  # seconds that a run must take to be believed; shorter ones are made larger
_FEWEST, _LONG = 3, 0.05  # runs of an operator, and seconds that they shall take together: busy machines stall
_TINY = 200  # launches that are timed together
_SIDE, _ROWS = 2048, (64, 512)  # of square weights that caches do not hold, and of tokens they are multiplied with

Call = Callable[[], Any]


def measured(device: torch.device, dtype: torch.dtype) -> Hardware:
    """The machine at hand."""
    rates = measured_rates(device, dtype)
    return Hardware(
        name=device_name(device),
        matmul={dtype: rates.pop("matmul")},
        bandwidth=rates.pop("bandwidth"),
        launch=rates.pop("launch"),
        fresh=rates.pop("fresh"),
        weights=rates.pop("weights"),
        shares=rates,
        overlaps=device.type != "cpu",
        fuses=fused("auto", device, dtype, 1),
        source="measured just now",
    )


def measured_rates(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Rates of :class:`~tomadiff.cost.hardware.Hardware`: shares by kind, and its other figures by name."""
    if dtype.itemsize < 2:
        dtype = torch.bfloat16  # weights that are kept in 8 bits are multiplied in 16
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        return _Bench(device, dtype).rates()


class _Bench:
    """Operators of one device and dtype; sizes grow until a run is long enough for the clock."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator().manual_seed(0)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)

    def rates(self) -> dict[str, float]:
        launch = self._launch()
        matmul, weights = self._products(launch)
        bandwidth = self._bytes(self._stream, launch)
        rates = {"launch": launch, "matmul": matmul, "weights": weights}
        rates |= {"bandwidth": bandwidth, "fresh": self._fresh(bandwidth)}
        multiplying = {"attention": self._attention, "convolution": self._convolution, "batched": self._tiles}
        moving = {"function": self._function, "gather": self._gather, "scatter": self._scatter}
        rates |= {kind: self._share(kind, self._flops, make, launch, matmul) for kind, make in multiplying.items()}
        return rates | {kind: self._share(kind, self._bytes, make, launch, bandwidth) for kind, make in moving.items()}

    def _share(
        self, kind: str, rate: Callable[..., float], make: Callable[[int], Call], launch: float, whole: float
    ) -> float:
        """A rate as a share; not every device has every operator, or a deterministic one where that is asked for."""
        try:
            return rate(make, launch) / whole
        except (RuntimeError, NotImplementedError):
            return USUAL_SHARES[kind]

    # ------------------------------------------------------------------------------------------ what is timed
    def _matmul(self, scale: int) -> Call:
        tokens, weight = self.random(512 * scale, 1280), self.random(1280, 1280)
        return lambda: F.linear(tokens, weight)

    def _attention(self, scale: int) -> Call:
        heads = self.random(1, 10 * scale, 512, 64)
        return lambda: F.scaled_dot_product_attention(heads, heads, heads)

    def _convolution(self, scale: int) -> Call:
        image, weight = self.random(scale, 640, 32, 32), self.random(640, 640, 3, 3)
        return lambda: F.conv2d(image, weight, padding=1)

    def _tiles(self, scale: int) -> Call:
        """Merging at ratio 0.5 in tiles of 4×4."""
        matrix, tokens = self.random(1, 256 * scale, 8, 16), self.random(1, 256 * scale, 16, 640)
        return lambda: torch.matmul(matrix, tokens)

    def _stream(self, scale: int) -> Call:
        """Tokens of SDXL at 1024², which the fastest caches of a CPU do not hold."""
        tokens = self.random(1, 4096 * scale, 640)
        result = torch.empty_like(tokens)
        return lambda: torch.add(tokens, 1.0, out=result)

    def _function(self, scale: int) -> Call:
        tokens = self.random(1, 4096 * scale, 640)
        return lambda: F.gelu(tokens)

    def _gather(self, scale: int) -> Call:
        tokens, rows = self.random(1, 4096 * scale, 640), self._rows(4096 * scale)
        return lambda: tokens.gather(1, rows)

    def _scatter(self, scale: int) -> Call:
        tokens, rows = self.random(1, 1024 * scale, 640), self._rows(1024 * scale)
        return lambda: tokens.scatter_reduce(1, rows, tokens, reduce="mean")

    def _rows(self, count: int) -> Tensor:
        order = torch.randperm(count, generator=self.generator).to(self.device)
        return order[None, :, None].expand(1, count, 640)

    # ------------------------------------------------------------------------------------------ how
    def _launch(self) -> float:
        """Seconds per operator where there is nothing to compute: a linear layer and a sum."""
        token, weight = self.random(1, 1, 8), self.random(8, 8)

        def tiny() -> None:
            for _ in range(_TINY):
                token + F.linear(token, weight)

        return self._best(tiny) / (2 * _TINY)

    def _flops(self, make: Callable[[int], Call], launch: float) -> float:
        seconds, traced = self._timed(make, launch)
        return traced.flops / seconds

    def _products(self, launch: float) -> tuple[float, float]:
        """FLOPs per second of large products, and bytes of weights per second that come on top of them."""
        if self.device.type != "cpu":
            return self._flops(self._matmul, launch), inf
        weights = self.random(_SIDE, _SIDE)
        few, many = (self._best(partial(F.linear, self.random(rows, _SIDE), weights)) for rows in _ROWS)
        per_row = max(many - few, many / 2) / (_ROWS[1] - _ROWS[0])
        ordering = few - launch - per_row * _ROWS[0]
        return 2 * _SIDE * _SIDE / per_row, weights.nbytes / ordering if ordering > 0.01 * few else inf

    def _bytes(self, make: Callable[[int], Call], launch: float) -> float:
        seconds, traced = self._timed(make, launch)
        return traced.moved / seconds

    def _timed(self, make: Callable[[int], Call], launch: float) -> tuple[float, Trace]:
        """Seconds of the smallest size that takes long enough, without its launches, and what it does."""
        scale = 1
        call = make(scale)
        while (seconds := self._once(call)) < _LEAST and scale < 64:
            scale *= 4
            call = make(scale)
        traced = trace(call)
        least = min(seconds, self._best(call))
        return max(least - launch * traced.launches, least / 2), traced

    def _fresh(self, bandwidth: float) -> float:
        """Bytes per second of the extra time that large results take: the system clears their memory first."""
        if self.device.type != "cpu":
            return inf
        half = torch.ones(LARGE // 8)  # of LARGE, in float32
        double = torch.ones(LARGE // 2)
        extra = self._best(lambda: double + double) - 4 * self._best(lambda: half + half)
        return double.nbytes / extra if extra > 0.1 * double.nbytes / bandwidth else inf

    def _best(self, call: Call) -> float:
        """Seconds of the fastest of several runs; noise only ever adds."""
        taken: list[float] = []
        while len(taken) < _FEWEST or sum(taken) < _LONG:
            taken.append(self._once(call))
        return min(taken)

    def _once(self, call: Call) -> float:
        self._wait()
        start = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize()
