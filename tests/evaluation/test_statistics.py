"""Intervals hold what they promise, and generate from no one else's random numbers."""

import pytest
import torch

from tomadiff.errors import SettingError, ShapeError
from tomadiff.evaluation.metrics.distances import frechet_distance, kernel_distance
from tomadiff.evaluation.metrics.statistics import (
    mean_interval,
    paired_difference,
    paired_ratio,
    ratio_interval,
    set_interval,
)


def test_an_interval_of_means_covers_the_truth_as_often_as_it_says() -> None:
    own = torch.Generator().manual_seed(1)
    trials = [mean_interval(torch.randn(40, generator=own) + 3, resamples=400, seed=k) for k in range(300)]
    covered = sum(trial.low <= 3 <= trial.high for trial in trials) / len(trials)
    assert 0.90 <= covered <= 0.98


def test_the_ratio_the_other_way_round_is_the_inverse() -> None:
    ratios = torch.rand(20, generator=torch.Generator().manual_seed(0)) * 2 + 0.2
    groups = [number // 2 for number in range(20)]
    there, back = ratio_interval(ratios, groups), ratio_interval(1 / ratios, groups)
    assert (1 / there.value, 1 / there.high, 1 / there.low) == pytest.approx(
        (back.value, back.low, back.high), rel=1e-5
    )


def test_an_interval_equals_scipys_bootstrap() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = torch.randn(60, generator=torch.Generator().manual_seed(2)).double()
    theirs = stats.bootstrap((values.numpy(),), lambda x, axis: x.mean(axis), method="percentile", rng=0)
    ours = mean_interval(values, resamples=9999)
    assert ours.value == pytest.approx(values.mean().item())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.02)


def test_samples_of_one_prompt_are_not_new_evidence() -> None:
    prompts = torch.randn(20, generator=torch.Generator().manual_seed(3))
    groups = [number // 5 for number in range(100)]
    alone, repeated = mean_interval(prompts), mean_interval(prompts.repeat_interleave(5), groups)
    assert (repeated.low, repeated.high) == pytest.approx((alone.low, alone.high))
    naive = mean_interval(prompts.repeat_interleave(5))
    assert naive.high - naive.low < 0.6 * (repeated.high - repeated.low)


def test_pairing_tells_apart_what_two_intervals_cannot() -> None:
    own = torch.Generator().manual_seed(4)
    hardness = torch.randn(50, generator=own)
    one, other = hardness + 0.1, hardness + 0.02 * torch.randn(50, generator=own)
    apart = paired_difference(one, other)
    assert 0.05 < apart.low < 0.1 < apart.high < 0.15
    assert mean_interval(one).low < mean_interval(other).high


def test_a_ratio_of_means_equals_scipys_bootstrap() -> None:
    stats = pytest.importorskip("scipy.stats")
    own = torch.Generator().manual_seed(6)
    others = torch.rand(60, generator=own).double() + 0.5
    values = others * (0.4 + 0.2 * torch.rand(60, generator=own))
    theirs = stats.bootstrap(
        (values.numpy(), others.numpy()),
        lambda x, y, axis: x.mean(axis) / y.mean(axis),
        paired=True,
        method="percentile",
        rng=0,
    )
    ours = paired_ratio(values, others, resamples=9999)
    assert ours.value == pytest.approx((values.mean() / others.mean()).item())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=2e-3)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=2e-3)
    assert paired_ratio(others, others).high == pytest.approx(1)


@pytest.mark.parametrize("metric", [frechet_distance, kernel_distance])
def test_an_interval_of_a_set_metric_surrounds_its_value(metric) -> None:  # type: ignore[no-untyped-def]
    own = torch.Generator().manual_seed(5)
    x, y = torch.randn(2, 80, 4, generator=own)
    shifted = set_interval(metric, x, y + 1, resamples=50)
    assert shifted.low < metric(x, y + 1).item() == shifted.value < shifted.high
    assert shifted.count == 80


def test_a_set_paired_with_itself_is_at_distance_zero_whatever_is_generated() -> None:
    x = torch.randn(30, 4)
    same = set_interval(frechet_distance, x, x, paired=True, resamples=20)
    assert (same.low, same.value, same.high) == pytest.approx((0, 0, 0), abs=1e-10)


def test_an_interval_of_a_set_metric_covers_the_truth_mostly() -> None:
    # E (x·y/2 + 1)³ from the moments of standard normal pairs, with both, none or one of them shifted by (1, 1)
    truth = 18.5 + 2.5 - 2 * 4
    own = torch.Generator().manual_seed(6)
    hits = 0
    for seed in range(60):
        x, y = torch.randn(2, 150, 2, generator=own)
        trial = set_interval(kernel_distance, x, y + 1, resamples=60, seed=seed)
        hits += trial.low <= truth <= trial.high
    assert hits >= 50


def test_intervals_are_the_same_each_time_and_leave_chance_alone() -> None:
    values = torch.randn(30)
    before = torch.get_rng_state()
    assert mean_interval(values) == mean_interval(values) != mean_interval(values, seed=1)
    set_interval(frechet_distance, torch.ones(5, 2), torch.zeros(5, 2), resamples=3)
    assert torch.equal(before, torch.get_rng_state())


def test_one_sample_and_no_sample() -> None:
    one = mean_interval(torch.tensor([2.0]))
    assert (one.value, one.low, one.high, one.count) == (2, 2, 2, 1)
    assert str(one) == "2 [2, 2]"
    with pytest.raises(ShapeError, match="no samples"):
        mean_interval(torch.tensor([]))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match=r"confidence=95.*0\.95"):
        mean_interval(torch.zeros(3), confidence=95)
    with pytest.raises(SettingError, match="resamples=0"):
        mean_interval(torch.zeros(3), resamples=0)
    with pytest.raises(ShapeError, match="3 values come with 2 groups"):
        mean_interval(torch.zeros(3), groups=["a", "b"])
    with pytest.raises(ShapeError, match="match one by one"):
        paired_difference(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ShapeError, match="match one by one"):
        paired_ratio(torch.zeros(3), torch.zeros(4))
