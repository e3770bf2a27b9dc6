"""Tuning: what the budget rules out is not generated, and the nearest images win."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import tomadiff
from tests import tiny
from tomadiff import Forecast, ToMA, embedded
from tomadiff.errors import SettingError, TomaError
from tomadiff.evaluation.runs.dry_run import DryRun, dry_run
from tomadiff.evaluation.runs.prompts import emoji_prompts
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.tune import search
from tomadiff.evaluation.tune.trials import Trials
from tomadiff.families.registry import family_of
from tomadiff.presets import Preset

PAIRS = [(prompt, 0) for prompt in emoji_prompts()[:2]]


@pytest.fixture(scope="module")
def pipe() -> Any:
    if "emoji-sdxl" not in embedded.available():
        pytest.skip("the weights of emoji-sdxl are not part of this checkout")
    return embedded.load("emoji-sdxl")


@pytest.fixture(scope="module")
def call() -> dict[str, Any]:
    return {**embedded.settings("emoji-sdxl"), "num_inference_steps": 4}


@pytest.fixture(scope="module")
def counted(pipe: Any, call: dict[str, Any]) -> DryRun:
    return dry_run(pipe, *PAIRS[0], call)


@dataclass
class Fake:
    """Stands in for generating: a figure for each candidate, or an error."""

    errors: dict[str, float]
    broken: set[str]
    computed: dict[str, float] = field(default_factory=dict)

    def compare(self, pairs: Any, candidate: Variant) -> list[dict[str, float]]:
        if candidate.name in self.broken:
            raise torch.linalg.LinAlgError("did not converge")
        return [{"mse": self.errors[candidate.name], "computed": self.computed.get(candidate.name, 1)} for _ in pairs]


@pytest.mark.parametrize(("broken", "left"), [({"a 0.25"}, ["c 0.75", "b 0.50"]), ({"c 0.75"}, ["a 0.25", "b 0.50"])])
def test_a_setting_that_fails_is_out_and_the_search_goes_on(
    broken: set[str], left: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    field = [(Variant.of(name, ToMA.paper(ratio)), 0.5) for name, ratio in (("a", 0.25), ("b", 0.5), ("c", 0.75))]
    fake = Fake({"a 0.25": 1.0, "b 0.50": 3.0, "c 0.75": 2.0}, broken)
    monkeypatch.setattr(search, "dry_run", lambda *_: None)
    monkeypatch.setattr(search, "affordable", lambda *_: list(field))
    monkeypatch.setattr(search, "Trials", lambda *_: fake)
    found = search.search(None, {}, PAIRS, 0.5)
    assert [one.candidate.name for one in found] == left
    assert "failed: did not converge" in caplog.text
    fake.broken = set(fake.errors)
    with pytest.raises(TomaError, match="No setting could be tried"):
        search.search(None, {}, PAIRS, 0.5)


def test_what_a_family_has_by_default_is_not_tried_twice() -> None:
    flux, sdxl = (family_of(tiny.build(name).model) for name in ("flux", "sdxl"))
    names = {
        family.name: {one.name.partition(",")[0] for one in search.settings(20, family=family)}
        for family in (flux, sdxl)
    }
    assert names[sdxl.name] - names[flux.name] == {"shared quota"}


@pytest.mark.slow
def test_only_what_spends_the_budget_is_tried(counted: DryRun) -> None:
    field = search.affordable(counted, 0.8)
    assert field
    assert all(0.8 - search.SLACK <= cost <= 0.8 for _, cost in field)
    assert len(field) < len(search.settings(counted.steps)) / 2


def test_the_search_offers_our_defaults_and_ways_around_each() -> None:
    offered = [one for one in search.settings(20) if one.method.ratio == 0.5]
    assert any(one.method == ToMA(0.5) and one.schedule == ToMA().schedule for one in offered)
    for name, values in {"quota": {None, "shared"}, "selector": {"random", "facility_location"}}.items():
        assert {getattr(one.method, name) for one in offered} == values
    assert len(search.settings(20)) <= 150, "each costs images"


def _pattern(forecast: Forecast, steps: int) -> tuple[bool, ...]:
    return tuple(forecast.is_fixed and forecast.computes(step, steps) for step in range(steps))


@pytest.mark.parametrize(("steps", "starts"), [(1, 1), (2, 2), (4, 3), (20, 4)])
def test_what_comes_to_the_same_is_offered_once(steps: int, starts: int) -> None:
    """Few steps have few beginnings."""
    offered = search.settings(steps)
    default = [one for one in offered if one.name.startswith("default") and one.method.ratio == 0.5]
    assert default[0].schedule.start == 0
    assert len(default) == starts
    merged = [tuple(one.schedule.dues(steps)) for one in offered]
    computed = [one.forecast and (one.forecast.tolerance, _pattern(one.forecast, steps)) for one in offered]
    assert len(set(zip((one.method for one in offered), merged, computed, strict=True))) == len(offered)


def test_steps_may_be_forecast_and_the_preset_says_which() -> None:
    offered = [one for one in search.settings(20) if one.forecast is not None]
    assert {one.method.ratio for one in offered} == {0.0, 0.25, 0.5}
    tolerances = {one.forecast.tolerance for one in offered if one.forecast and not one.forecast.is_fixed}
    assert tolerances == set(search.TOLERANCES)
    assert not any(one.forecast for one in search.settings(1))
    assert all(one.forecast is None or one.forecast.is_fixed for one in search.settings(4)), "too few steps to measure"
    preset = search.preset_of(search.Finding(offered[0], 0.6, 3.0, 2), "mine", 0.6, 20)
    assert preset.forecast == offered[0].forecast


def test_what_a_tolerance_costs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes more steps than the budget allows is out, and the cost of the others is what was seen."""
    plain = Variant.of("default", ToMA(0.5))
    first, second = (
        replace(Variant.of(f"forecast, {tolerance},", ToMA(0.0)), forecast=Forecast(tolerance))
        for tolerance in (0.05, 0.1)
    )
    fake = Fake({plain.name: 9.0, first.name: 1.0, second.name: 2.0}, set(), {first.name: 0.8, second.name: 0.55})
    monkeypatch.setattr(search, "dry_run", lambda *_: None)
    monkeypatch.setattr(search, "affordable", lambda *_: [(plain, 0.6), (first, 1.0), (second, 1.0)])
    monkeypatch.setattr(search, "Trials", lambda *_: fake)
    found = search.search(None, {}, PAIRS, 0.6)
    assert [(one.candidate, one.cost) for one in found] == [(second, 0.55), (plain, 0.6)]


@pytest.mark.parametrize(("steps", "least"), [(4, 1.0), (8, 0.75), (20, 0.5)])
def test_the_least_that_a_tolerance_computes(steps: int, least: float) -> None:
    assert Forecast(0.1).least(steps) == least
    assert Forecast(0.0).least(steps) == 1
    assert Forecast(steps=(0, 1)).least(steps) == 2 / steps


def test_coarse_levels_may_merge_more_where_there_are_some() -> None:
    split = [one for one in search.settings(20, levels=3) if one.schedule.ratio_at_level]
    assert {dict(one.schedule.ratio_at_level)[0] < one.method.ratio for one in split} == {True}
    assert {dict(one.schedule.ratio_at_level)[2] > one.method.ratio for one in split} == {True}
    assert not any(one.schedule.ratio_at_level for one in search.settings(20))


@pytest.mark.parametrize(("family", "levels"), [("sdxl", 2), ("flux", 1)])
def test_levels_are_counted_off_the_model(family: str, levels: int) -> None:
    assert search.levels_of(tiny.build(family).model) == levels


def found(name: str, cost: float, error: float) -> search.Finding:
    return search.Finding(Variant.of(name, ToMA(0.5)), cost, error, 2)


def test_the_front_leaves_out_what_costs_more_and_is_no_nearer() -> None:
    tried = [found("a, from 0%", 0.7, 50), found("a, from 5%", 0.6, 60), found("b, from 0%", 0.65, 70)]
    assert [one.cost for one in search.front(tried)] == [0.6, 0.7]
    chart = search.chart(tried, "emoji-sdxl")
    assert len(chart.getcolors(1 << 20) or []) > 10
    assert search.chart(tried[:1], "emoji-sdxl").size == chart.size, "one setting is a chart too"


@pytest.mark.parametrize("budget", [0.0, 1.0, -1.0])
def test_impossible_budgets_are_refused_before_anything_is_counted(budget: float) -> None:
    with pytest.raises(SettingError, match="share of FLOPs"):
        search.affordable(cast(DryRun, None), budget)


@pytest.mark.slow
def test_a_budget_out_of_reach_says_what_is_in_reach(counted: DryRun) -> None:
    with pytest.raises(SettingError, match="the least that merging can reach is"):
        search.affordable(counted, 0.05)


@pytest.mark.slow
def test_the_counted_cost_is_that_of_the_image(pipe: Any, call: dict[str, Any], counted: DryRun) -> None:
    candidate = next(one for one in search.settings(4) if one.name == "default, from 40% 0.50")
    told = counted.flops(candidate) / counted.flops(Variant())
    assert Trials(pipe, call).cost(PAIRS[0], candidate) == pytest.approx(told, rel=0.02)


@pytest.mark.slow
def test_the_nearest_wins_and_can_be_kept(
    pipe: Any, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(search, "RATIOS", (0.5, 0.75))
    monkeypatch.setattr(search, "STARTS", (0.0, 0.5))
    monkeypatch.setattr(search, "SLACK", 1.0)
    found = search.search(pipe, call, PAIRS, 0.95)
    assert [one.error for one in found] == sorted(one.error for one in found)
    assert found[0].candidate.name.endswith("from 50% 0.50"), "least merged, nearest"
    preset = search.preset_of(found[0], "emoji-sdxl", 0.95, 4)
    preset.save(tmp_path / "mine.json")
    assert Preset.load(tmp_path / "mine.json") == preset
    assert "dB" in preset.why
    assert not tomadiff.remove(pipe)
