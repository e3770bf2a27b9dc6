"""The timer of every measurement.

``torch.utils.benchmark.Timer`` runs one statement many times; here calls take turns, so that a machine that slows down
slows all that is compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)

ASYNCHRONOUS = ("cuda", "mps", "xpu")
"""Devices that compute asynchronously, which are synchronized before the clock is read."""


@dataclass(frozen=True)
class Times:
    """Seconds of several runs."""

    runs: tuple[float, ...]

    @property
    def least(self) -> float:
        """The best one: what else a machine does only ever adds."""
        return min(self.runs)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.runs)


def now(device: torch.device | str) -> float:
    """Seconds, once ``device`` has done all it was given."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type in ASYNCHRONOUS:
        getattr(torch, device.type).synchronize()
    return time.perf_counter()


def seconds_of(call: Callable[[], object], device: torch.device | str) -> float:
    """How long ``call`` takes."""
    start = now(device)
    call()
    return now(device) - start


def interleaved(
    calls: Mapping[Key, Callable[[], object]], device: torch.device | str, runs: int, warm_up: int = 1
) -> dict[Key, Times]:
    """Time ``calls`` in turn, round after round; the first rounds include start-up and do not count."""
    rounds = [{name: seconds_of(call, device) for name, call in calls.items()} for _ in range(warm_up + runs)]
    return {name: Times(tuple(one[name] for one in rounds[warm_up:])) for name in calls}
