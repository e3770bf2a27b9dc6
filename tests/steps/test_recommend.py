"""What is recommended for how many steps, and how many steps a cap lets be computed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tomadiff.errors import SettingError
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.recommend import REACH, Capped, Kind, Recommended, computed
from tomadiff.steps.run import Run
from tomadiff.steps.spread import spread

KINDS: tuple[Kind, ...] = ("unet", "transformer")


# ---------------------------------------------------------------------------------------------- spread
@given(total=st.integers(1, 120), share=st.floats(0.0, 1.0), warm_up=st.integers(1, 6))
def test_as_many_steps_as_were_asked_for(total: int, share: float, warm_up: int) -> None:
    count = max(1, round(share * total))
    found = spread(count, total, warm_up)
    assert len(found) == len(set(found)) == count
    assert found[0] == 0
    assert count == 1 or found[-1] == total - 1, "the last step is an image's last word"
    assert sorted(found) == list(found)


def test_steps_are_dense_at_both_ends() -> None:
    found = spread(12, 50)
    gaps = [after - before for before, after in pairwise(found)]
    widest = gaps.index(max(gaps))
    assert gaps[:widest] == sorted(gaps[:widest])
    assert gaps[widest:] == sorted(gaps[widest:], reverse=True)


def test_times_say_where_steps_are_dense() -> None:
    late = [step**3 for step in range(20)]
    assert sum(spread(8, 20, 1, late)) > sum(spread(8, 20, 1, range(20)))


# ---------------------------------------------------------------------------------------------- recommended
def test_the_tolerance_follows_from_the_number_of_steps() -> None:
    found = [Recommended().of_run(Run(steps)).tolerance for steps in (8, 20, 50)]
    assert found == sorted(found)
    assert found[0] > 0


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_few_steps_are_all_computed_and_the_reason_is_told(steps: int) -> None:
    assert Recommended().of_run(Run(steps)) == Forecast(0.0)
    assert f"nothing is recommended for {steps} steps" in Recommended().why(Run(steps))


def test_only_the_steps_that_are_left_count() -> None:
    assert not Recommended().of_run(Run(20, first=17)).skips


def test_without_a_number_of_steps_the_tolerance_is_small() -> None:
    assert 0 < Recommended().of_run(Run()).tolerance <= Recommended().of_run(Run(8)).tolerance


# ---------------------------------------------------------------------------------------------- capped
def capped(cap: float, kind: Kind = "unet", merges: bool = True) -> Capped:
    return Capped(cap=cap, kind=kind, merges=merges, asked=f"flops={cap:g}")


@pytest.mark.parametrize("kind", KINDS)
@given(cap=st.floats(0.05, 0.99), steps=st.integers(5, 100))
def test_merging_can_reach_what_forecasts_leave(kind: Kind, cap: float, steps: int) -> None:
    count = computed(cap, steps, kind, merges=True)
    assert 1 <= count <= steps
    assert count == 1 or count * REACH[kind] <= cap * steps + 1e-6


@given(cap=st.floats(0.05, 0.99), steps=st.integers(1, 100))
def test_without_merging_a_pattern_keeps_the_cap_alone(cap: float, steps: int) -> None:
    count = computed(cap, steps, "transformer", merges=False)
    assert count <= cap * steps + 1e-6
    assert count + 1 > cap * steps - 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_four_steps_are_left_to_merging(kind: Kind) -> None:
    assert not capped(0.6, kind).of_run(Run(4)).skips


def test_image_to_image_spreads_the_steps_that_are_left() -> None:
    found = capped(0.5, "transformer").of_run(Run(20, first=12)).steps
    assert found is not None
    assert (found[0], found[1], found[-1]) == (0, 12, 19)  # a forecast has step 0 always


def test_samplers_that_add_noise_are_left_to_merging_or_refused() -> None:
    assert not capped(0.6).of_run(Run(20, noisy=True)).skips
    with pytest.raises(SettingError, match=r"flops=0.6 is out of reach: the sampler adds noise"):
        capped(0.6, merges=False).of_run(Run(20, noisy=True))


def test_what_no_pattern_reaches_is_refused() -> None:
    with pytest.raises(SettingError, match=r"flops=0.2 is out of reach: 4 steps cannot be cut"):
        capped(0.2, merges=False).of_run(Run(4))
