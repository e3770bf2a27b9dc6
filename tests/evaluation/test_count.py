from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from tomadiff import Bound, Schedule, ToDo, ToMA, ToMeSD, apply
from tomadiff.evaluation.runs.flops import WINDOW, Count, count, count_kinds, count_limit
from tomadiff.evaluation.timing.architectures import build, inputs
from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Due


def count_window(model: nn.Module, given: dict[str, Any], method: Method) -> Count:
    return Count(count_kinds(model, given, method), Counter(method.schedule.dues(WINDOW)))


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(tokens)


def test_a_multiply_add_is_two_operations() -> None:
    model, tokens = Double(), {"tokens": torch.zeros(3, 8)}
    assert count(model, tokens) == 2 * 3 * 8 * 4


def test_a_window_follows_the_schedule() -> None:
    paper = [Due.SELECT, *[Due.REUSE] * 4, Due.REWEIGH, *[Due.REUSE] * 4]
    assert Schedule(10, 5).dues(WINDOW) == paper
    assert Schedule(1, 1).dues(3) == [Due.SELECT] * 3
    assert Schedule(10, 10, start=2).dues(4) == [Due.SKIP, Due.SKIP, Due.SELECT, Due.REUSE]


def test_kinds_of_steps_count_by_how_often_they_come() -> None:
    counted = Count({Due.SELECT: 200, Due.REWEIGH: 150, Due.REUSE: 100}, {Due.SELECT: 1, Due.REWEIGH: 1, Due.REUSE: 8})
    assert counted.flops == 115
    assert (counted.planning, counted.reusing) == (15, 100)


@pytest.mark.parametrize("name", ["sdxl", "flux", "sd3"])
def test_toma_is_within_one_percent_of_the_speed_limit(name: str) -> None:
    """With few blocks a plan serves few, so the full models, in benchmarks/results/flops.csv, come closer yet."""
    model, given = build(name, depth=1), inputs(name)
    toma, bound = (count_window(model, given, method) for method in (ToMA.tile(0.5, skip=0), Bound(0.5, skip=0)))
    assert bound.flops <= toma.flops < 1.01 * bound.flops
    assert bound.planning == 0 < toma.planning


def test_between_the_limit_and_no_merging_lies_the_price_of_merging() -> None:
    model, given = build("sd3", depth=1), inputs("sd3")
    tokens, width, kept = 4096, 2432, 8
    moved = 4 * 2 * tokens * kept * width  # merge and unmerge of two ops
    assert count_window(model, given, Bound(0.5)).flops == count_limit(model, given, 0.5) + moved
    assert count_limit(model, given, 0.5) < count(model, given)


def test_planning_of_a_window_is_what_the_formulas_say() -> None:
    model, given = build("sd3", depth=2), inputs("sd3")
    tokens, width = 4096, 2432
    matching = 2 * (tokens // 4) * (tokens - tokens // 4) * width  # destinations × the others, at every block and step
    assert count_window(model, given, ToMeSD(0.5)).planning == 2 * matching
    similarity, weights = 2 * tokens * 16 * width, 2 * tokens * 8 * width  # in tiles of 16, once for all blocks
    assert count_window(model, given, ToMA.tile(0.5)).planning == pytest.approx((similarity + weights) / WINDOW)
    assert count_window(model, given, ToDo()).planning == 0


def test_counting_leaves_the_model_as_it_was() -> None:
    model, given = build("sd3", depth=1), inputs("sd3", 256)
    before = count(model, given)
    count_window(model, given, ToMA.tile(0.5))
    assert count(model, given) == before


def test_a_patch_without_data_says_what_it_knows() -> None:
    model = build("flux", depth=2)
    with apply(model, ToMA.tile(0.5, skip=0)) as patch, torch.no_grad():
        patch.step(0)
        model(**inputs("flux", 512))
    (level,) = patch.report().models[0].levels
    assert (level.tokens_before, level.tokens_after) == (1024, 512)
    assert level.coverage is not None
    assert math.isnan(level.coverage)
