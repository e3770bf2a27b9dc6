"""The clock of every measurement of time."""

from __future__ import annotations

import time

import torch

BEHIND = ("cuda", "mps", "xpu")
"""Devices that work behind the back of the clock."""


def now(device: torch.device | str) -> float:
    """Seconds, once ``device`` has done all it was given."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type in BEHIND:
        getattr(torch, device.type).synchronize()
    return time.perf_counter()
