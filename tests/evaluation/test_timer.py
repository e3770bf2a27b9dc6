from __future__ import annotations

import itertools

import pytest
import torch

from tomadiff.evaluation.runs import timer
from tomadiff.evaluation.runs.timer import Times, interleaved, seconds_of


def test_calls_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks whenever it is read, and five times more in a slow call."""
    order: list[str] = []
    clock = itertools.count(1.0)
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(clock))
    calls = {
        "quick": lambda: order.append("quick"),
        "slow": lambda: order.append(f"slow {[next(clock) for _ in range(5)][-1]}"),
    }
    taken = interleaved(calls, "cpu", runs=3)
    assert [said.split()[0] for said in order] == ["quick", "slow"] * 4
    assert {name: own.runs for name, own in taken.items()} == {"quick": (1.0,) * 3, "slow": (6.0,) * 3}


def test_median_and_least() -> None:
    times = Times((3.0, 1.0, 8.0))
    assert (times.least, times.median) == (1.0, 3.0)
    with pytest.raises(ValueError, match="empty"):
        _ = Times(()).least


def test_an_asynchronous_device_is_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: told.append("waited"))
    seconds_of(lambda: told.append("called"), torch.device("mps"))
    assert told == ["waited", "called", "waited"]
