"""Forecasts against what they were measured by: equal pairs, equal cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import forecast_fronts
from benchmarks.fidelity import path_of as fidelity_rows
from benchmarks.forecasts import SETS
from benchmarks.forecasts import path_of as forecast_rows
from tomadiff.evaluation.runs import rows
from tomadiff.steps.forecast import Forecast


def write(path: Path, steps: int, column: str, name: str, cost: float, errors: list[float]) -> None:
    for seed, error in enumerate(errors):
        about = {"steps": steps, column: name, "prompt": "a fox", "seed": seed}
        rows.append(path, {**about, "cost": cost, "mse": error, "psnr": 40 - error})


def test_a_pattern_is_compared_over_the_same_pairs_at_no_more_cost(tmp_path: Path) -> None:
    write(fidelity_rows(tmp_path, "emoji-flux"), 8, "candidate", "reuse every 2 from 0%", 0.5, [4.0, 2.0, 90.0])
    ours = forecast_rows(tmp_path, "emoji-flux", shown=True)
    write(ours, 8, "rule", repr(Forecast(every=2, start=0.0)), 0.5, [2.0, 1.0])
    write(ours, 8, "rule", repr(Forecast(every=2)), 0.625, [0.1, 0.1])
    *_, line = forecast_fronts.patterns(tmp_path)
    assert "`Forecast(every=2, start=0.0)` (.500)" in line
    assert "| 37.0 |" in line
    assert "| 0.50 [" in line
    assert line.endswith("| 2 |")


@pytest.mark.parametrize(("cost", "error"), [(0.6, "2.00"), (0.4, "4.00 at .500")])
def test_a_rule_is_compared_at_the_cost_of_the_first(tmp_path: Path, cost: float, error: str) -> None:
    path = forecast_rows(tmp_path, "emoji-sdxl", shown=False)
    for rule, own in zip(SETS["default"], ((0.6, 2.0), (0.7, 1.0), (0.5, 4.0)), strict=True):
        write(path, 20, "rule", repr(rule), own[0], [own[1]])
    for rule in SETS["trial"]:
        write(path, 20, "rule", repr(rule), cost, [9.0])
    *_, line = forecast_fronts.rules(tmp_path)
    assert line == f"| emoji-sdxl | trial | .{cost * 1000:.0f} | 9.00 | 9.00 | {error} | {error} | 1 |"
