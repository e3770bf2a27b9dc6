"""The clock of every measurement of time."""

from __future__ import annotations

import time

import torch

ASYNCHRONOUS = ("cuda", "mps", "xpu")
"""Devices that compute asynchronously, which are synchronized before the clock is read."""


def now(device: torch.device | str) -> float:
    """Seconds, once ``device`` has done all it was given."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type in ASYNCHRONOUS:
        getattr(torch, device.type).synchronize()
    return time.perf_counter()
