"""Machines as a roofline sees them: how fast they multiply, how fast they move bytes, what it costs to ask them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch

from tomadiff.cost.op import KINDS, Op
from tomadiff.cost.trace import Trace
from tomadiff.errors import require_choice

_BY_FLOPS = ("matmul", "batched", "attention", "convolution")

PARTS = (*KINDS, "fresh", "weights", "launch")
"""What the time of a call is made of."""


@dataclass(frozen=True)
class Hardware:
    """One machine. Rates are what software reaches, not what a data sheet promises.

    Attributes:
        name: what it is.
        matmul: FLOPs per second of large products, by dtype; an unknown dtype counts as the slowest.
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
    def of(
        cls, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, threads: int | None = None
    ) -> Hardware:
        """The constants that stand for a device, by its name and properties; no clock is read.

        They come from the file that ``TOMADIFF_CALIBRATION`` names if it knows the device, else from
        :mod:`tomadiff.cost.machines`. ``threads`` are those of a CPU; ``None``: as many as torch uses now.
        """
        from tomadiff.cost.calibration import calibrated
        from tomadiff.cost.machines import machine_of

        device, threads = torch.device(device), torch.get_num_threads() if threads is None else threads
        return calibrated(device, dtype, threads) or machine_of(device, dtype, threads)

    @classmethod
    def measure(cls, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Hardware:
        """The machine at hand, timed for about a second: for calibrations and benchmarks, never to decide by."""
        from tomadiff.cost.measure import measured

        return measured(torch.device(device), dtype)

    @classmethod
    def named(cls, name: str) -> Hardware:
        """One of :data:`~tomadiff.cost.machines.GPUS`; an unknown name raises with the known ones."""
        from tomadiff.cost.machines import GPUS

        require_choice("hardware", name, tuple(GPUS))
        return GPUS[name]

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.source else self.name

    def rate(self, kind: str, dtype: torch.dtype) -> float:
        """FLOPs per second of kinds that multiply, bytes per second of the others."""
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
