"""Machines as a roofline sees them: how fast they multiply, how fast they move bytes, what it costs to ask them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import Any

import torch

from tomadiff.cost.measure import USUAL_SHARES, measured_rates
from tomadiff.cost.op import KINDS, Op
from tomadiff.cost.trace import Trace
from tomadiff.errors import require_choice
from tomadiff.kernels import fused

_BY_FLOPS = ("matmul", "batched", "attention", "convolution")

PARTS = (*KINDS, "fresh", "weights", "launch")
"""What the time of a call is made of."""


@dataclass(frozen=True)
class Hardware:
    """One machine. Rates are what software reaches, not what a data sheet promises.

    Attributes:
        name: what it is.
        matmul: operations per second of large products, by dtype; an unknown dtype counts as the slowest.
        bandwidth: bytes per second of operators that read and write in order.
        launch: seconds that a dispatched operator takes whatever it does.
        shares: how fast other kinds of operators are: a share of ``matmul`` for those that multiply, of ``bandwidth``
            for the others.
        fresh: bytes per second at which the system hands out memory for large results; GPUs keep theirs.
        weights: bytes per second at which weights are put in order before they are multiplied with, which costs a
            product of few rows as much as one of many; GPUs take them as they lie.
        overlaps: whether launching runs ahead of computing, so that the slower of both counts, not their sum.
        fuses: whether our kernels run on it.
        source: where the figures are from.
    """

    name: str
    matmul: Mapping[torch.dtype, float]
    bandwidth: float
    launch: float
    shares: Mapping[str, float] = field(default_factory=dict)
    fresh: float = inf
    weights: float = inf
    overlaps: bool = False
    fuses: bool = False
    source: str = ""

    @classmethod
    def measure(cls, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Hardware:
        """The machine at hand, in about a second; the first answer is kept for the rest of the process."""
        return _measured(str(device), dtype)

    @classmethod
    def named(cls, name: str) -> Hardware:
        """One of :data:`GPUS`; an unknown name raises with the known ones."""
        require_choice("hardware", name, tuple(GPUS))
        return GPUS[name]

    def rate(self, kind: str, dtype: torch.dtype) -> float:
        """Operations per second of kinds that multiply, bytes per second of the others."""
        if kind not in _BY_FLOPS:
            return self.bandwidth * self.shares.get(kind, 1.0)
        return self.matmul.get(dtype, min(self.matmul.values())) * self.shares.get(kind, 1.0)

    def work(self, op: Op) -> float:
        """Seconds of one operator without its launch: arithmetic or memory, whichever takes longer."""
        if op.kind not in _BY_FLOPS:
            return op.moved / self.rate(op.kind, op.dtype)
        return max(op.flops / self.rate(op.kind, op.dtype), op.moved / self.bandwidth)

    def parts(self, trace: Trace) -> dict[str, float]:
        """Seconds of a call by :data:`PARTS`."""
        found = dict.fromkeys(PARTS, 0.0)
        for op, times in trace.ops.items():
            found[op.kind] += times * self.work(op)
            found["fresh"] += times * op.fresh / self.fresh
            found["weights"] += times * op.weights / self.weights
        found["launch"] = self.launch * trace.launches
        return found

    def seconds(self, trace: Trace) -> float:
        """Seconds of a call."""
        parts = self.parts(trace)
        launching = parts.pop("launch")
        return max(sum(parts.values()), launching) if self.overlaps else sum(parts.values()) + launching

    def slowed(self, factors: Mapping[str, float]) -> Hardware:
        """The machine whose :data:`PARTS` take so many times as long."""
        base = factors["matmul"]
        shares: dict[str, float] = {kind: self.shares.get(kind, 1.0) / factors[kind] for kind in KINDS[1:]}
        for kind in _BY_FLOPS[1:]:
            shares[kind] *= base
        return replace(
            self,
            matmul={dtype: rate / base for dtype, rate in self.matmul.items()},
            shares=shares,
            fresh=self.fresh / factors["fresh"],
            weights=self.weights / factors["weights"],
            launch=self.launch * factors["launch"],
        )

    def as_row(self) -> dict[str, Any]:
        """Plain numbers, for JSON and CSV."""
        rates = {f"matmul_{str(dtype).removeprefix('torch.')}": rate for dtype, rate in self.matmul.items()}
        shares = {f"share_{kind}": share for kind, share in self.shares.items()}
        constants = {
            "bandwidth": self.bandwidth, "launch": self.launch, "fresh": self.fresh, "weights": self.weights
        }  # fmt: skip
        return {"hardware": self.name, **rates, **constants, **shares}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Hardware:
        """The machine that :meth:`as_row` wrote down, from numbers or their text; other columns do not matter."""
        rates = {name.removeprefix("matmul_"): float(row[name]) for name in row if name.startswith("matmul_")}
        return cls(
            name=row["hardware"],
            matmul={getattr(torch, dtype): rate for dtype, rate in rates.items()},
            bandwidth=float(row["bandwidth"]),
            launch=float(row["launch"]),
            shares={name.removeprefix("share_"): float(row[name]) for name in row if name.startswith("share_")},
            fresh=float(row["fresh"]),
            weights=float(row.get("weights", inf)),
            source="measured before",
        )


@cache
def _measured(device: str, dtype: torch.dtype) -> Hardware:
    rates = measured_rates(torch.device(device), dtype)
    where = torch.device(device)
    return Hardware(
        name=_name(where),
        matmul={dtype: rates.pop("matmul")},
        bandwidth=rates.pop("bandwidth"),
        launch=rates.pop("launch"),
        fresh=rates.pop("fresh"),
        weights=rates.pop("weights"),
        shares=rates,
        overlaps=where.type != "cpu",
        fuses=fused("auto", where, dtype, 1),
        source="measured when this process started",
    )


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"this machine's {device.type}"


# ---------------------------------------------------------------------------------------------- known machines
_REACHED = 0.7  # share of the published dense rate that large products of diffusion models reach in practice
_STREAMED = 0.8  # the same for memory
_EAGER = 5e-6  # seconds between launches of eager PyTorch on a current CPU


_HALF, _BRAIN, _FULL = torch.float16, torch.bfloat16, torch.float32


def _gpu(name: str, tera: Mapping[torch.dtype, float], giga: float, source: str) -> Hardware:
    """A data sheet, with what is usually reached of it."""
    return Hardware(
        name=name,
        matmul={dtype: _REACHED * rate * 1e12 for dtype, rate in tera.items()},
        bandwidth=_STREAMED * giga * 1e9,
        launch=_EAGER,
        shares=USUAL_SHARES,
        overlaps=True,
        fuses=_BRAIN in tera,  # as old as our kernels: Ampere
        source=source,
    )


GPUS: dict[str, Hardware] = {
    "V100": _gpu("V100", {_HALF: 125, _FULL: 15.7}, 900, "Tesla V100 data sheet (SXM2)"),
    "RTX 8000": _gpu("RTX 8000", {_HALF: 130.5, _FULL: 16.3}, 672, "Quadro RTX 8000 data sheet"),
    "RTX 6000 Ada": _gpu(
        "RTX 6000 Ada",
        {_HALF: 364.2, _BRAIN: 364.2, _FULL: 91.1},
        960,
        "RTX 6000 Ada data sheet: 1457 TFLOPS of FP8 with sparsity are 364.2 of dense FP16",
    ),
    "A100": _gpu("A100", {_HALF: 312, _BRAIN: 312, _FULL: 19.5}, 2039, "A100 80 GB data sheet (SXM)"),
    "H100": _gpu("H100", {_HALF: 989.4, _BRAIN: 989.4, _FULL: 67}, 3350, "H100 data sheet (SXM), without sparsity"),
    "RTX 4090": _gpu(
        "RTX 4090",
        {_HALF: 165.2, _BRAIN: 165.2, _FULL: 82.6},
        1008,
        "Ada architecture white paper: dense, FP32 accumulation",
    ),
}
"""Published dense rates and bandwidths; the shares reached of them are assumptions, the same for all, and stated above.

Float32 is what torch does by default, without TF32. A V100 and an RTX 8000 have no bfloat16: it counts as float32.
"""
