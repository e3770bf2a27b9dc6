"""Which steps were computed, in words and as squares."""

from tomadiff.steps.run import Pattern
from tomadiff.web.steps import steps_shown


def test_steps_are_named_from_one_and_each_has_a_square() -> None:
    shown = steps_shown(Pattern((0, 1, 3), (2, 4)), "recommended for 5 steps")
    assert "Recommended for 5 steps. 3 of 5 steps computed: 1, 2, 4." in shown
    assert "at most 1.67× as fast" in shown
    assert shown.count("<span") == 5
    assert shown.count('class="computed"') == 3


def test_where_nothing_is_forecast_the_reason_is_said_alone() -> None:
    shown = steps_shown(Pattern((0, 1)), "nothing is recommended for 2 steps")
    assert "Nothing is recommended for 2 steps." in shown
    assert "<span" not in shown
    assert steps_shown(Pattern()) == ""
