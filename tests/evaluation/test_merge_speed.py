"""Merging against ToMeSD's: who takes part, what is compared, and why it must be faster: what is launched."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tomadiff import Grid
from tomadiff.evaluation.timing import merge_speed
from tomadiff.evaluation.timing.merge_speed import (
    PACKAGE,
    PROMISED,
    RIVAL,
    Contender,
    Timing,
    compare,
    contenders,
    measure,
)

GRID, CHANNELS = Grid(16, 16), 32
MOVING = {"gather", "scatter", "scatter_", "scatter_reduce", "index_select", "index", "sort", "argsort", "cat"}


def field(ratio: float = 0.5) -> tuple[torch.Tensor, dict[str, Contender]]:
    tokens = torch.randn(1, GRID.tokens, CHANNELS)
    return tokens, {one.name: one for one in contenders(tokens, GRID, ratio)}


class Operators(TorchDispatchMode):
    """The names of all operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_everybody_gives_back_what_it_takes(ratio: float) -> None:
    tokens, found = field(ratio)
    assert set(found) == {PACKAGE, *merge_speed.METHODS}
    for one in found.values():
        merged = one.merge(tokens)
        assert merged.shape == (1, GRID.tokens * (1 - ratio), CHANNELS)
        assert one.unmerge(merged).shape == tokens.shape


def test_ours_multiply_where_tomesd_gathers_and_scatters() -> None:
    """The reason for the promise, in operators instead of seconds."""
    tokens, found = field()
    used = {}
    for name, one in found.items():
        merged = one.merge(tokens)
        with Operators() as merging:
            one.merge(tokens)
        with Operators() as unmerging:
            one.unmerge(merged)
        used[name] = merging.names, unmerging.names
    for name in PROMISED:
        for ours, theirs in zip(used[name], used[PACKAGE], strict=True):
            assert not MOVING & set(ours)
            assert ours.count("bmm") == 1
            assert sum(operator in MOVING for operator in theirs) >= 4


def test_timings_say_what_was_timed() -> None:
    timings = measure(sizes=(1024,), ratios=(0.75,), rounds=1)
    assert {(timing.method, timing.op) for timing in timings} == {
        (name, op) for name in (PACKAGE, *merge_speed.METHODS) for op in ("merge", "unmerge")
    }
    assert all((timing.tokens, timing.channels) == (1024, 1280) for timing in timings)
    launches = {(timing.method, timing.op): timing.launches for timing in timings}
    for op in ("merge", "unmerge"):
        assert all(launches[name, op] < launches[PACKAGE, op] for name in PROMISED)


def timing(method: str, best: float, **settings: Any) -> Timing:
    return replace(Timing(4096, 640, 0.5, method, method, "merge", best, best, 1), **settings)


def test_the_closest_comes_first_and_the_package_before_our_own() -> None:
    ours = [timing("paper-tile", 0.5), timing("paper-stripe", 0.2), timing("paper-whole", 9.0)]
    own, package = timing(RIVAL, 0.4), timing(PACKAGE, 1.0)
    assert [(pair.own.method, pair.share) for pair in compare([*ours, own, package])] == [
        ("paper-tile", 0.5), ("paper-stripe", 0.2),
    ]  # fmt: skip
    assert compare([*ours, own])[0].share == pytest.approx(1.25)
    assert "2.00 times as fast" in str(compare([*ours, package])[0])


def test_without_the_package_our_own_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tomesd.merge", None)
    assert set(field()[1]) == set(merge_speed.METHODS)
