from __future__ import annotations

import time

import pytest
import torch

from tomadiff.evaluation.runs.timer import Times, interleaved, seconds_of


def test_calls_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    calls = {"quick": lambda: order.append("quick"), "slow": lambda: (order.append("slow"), time.sleep(0.02))}
    taken = interleaved(calls, "cpu", runs=3)
    assert order == ["quick", "slow"] * 4
    assert [len(own.runs) for own in taken.values()] == [3, 3]
    assert taken["slow"].least >= 0.02 > taken["quick"].least


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
