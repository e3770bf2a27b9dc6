"""What a browser sends becomes a request, or says which field is wrong."""

from typing import Any

import pytest

from tomadiff.evaluation.runs.variants import Variant
from tomadiff.web.request import FIELDS, Canvas, ImageRequest, ImageSettings, read

CANVAS = Canvas(128, 128)
GOOD: dict[str, Any] = {
    "model": "emoji-sdxl", "prompt": " a fox ", "method": "toma", "ratio": 0.5, "width": 128, "height": 64.0,
    "steps": 20.0, "seed": 7,
}  # fmt: skip


def test_good_values_become_a_request() -> None:
    request = read(GOOD, CANVAS)
    assert request == ImageRequest(ImageSettings("emoji-sdxl", "a fox", 7, 20, 128, 64), Variant.named("toma", 0.5))
    assert isinstance(request, ImageRequest)
    assert isinstance(request.settings.steps, int)  # browsers send 20.0, and pipelines refuse it


def test_a_method_with_a_ratio_of_its_own_is_one_request_wherever_the_slider_stands() -> None:
    here, there = (read({**GOOD, "method": "todo", "ratio": ratio}, CANVAS) for ratio in (0.1, 0.9))
    assert here == there


@pytest.mark.parametrize(
    ("name", "value", "field", "words"),
    [
        ("prompt", "", "prompt", "say what to generate"),
        ("prompt", " \n ", "prompt", "say what to generate"),
        ("prompt", None, "prompt", "say what to generate"),
        ("prompt", "x" * 1001, "prompt", "1001 characters"),
        ("method", "tomb", "method", "'toma'"),
        ("ratio", 1.0, "ratio", "up to (not including) 1"),
        ("forecast", 7, "forecast", "from 0 to 1"),
        ("forecast", None, "forecast", "from 0 to 1"),
        ("ratio", None, "ratio", "share of tokens"),
        ("width", 130, "size", "130 × 64 is not possible; give sides from 64 to 256 pixels that 8 divides."),
        ("height", 512, "size", "from 64 to 256"),
        ("height", 0, "size", "from 64 to 256"),
        ("width", None, "size", "nothing × 64"),
        ("width", float("nan"), "size", "nan"),
        ("steps", 0, "steps", "from 1 to 200"),
        ("steps", 2.5, "steps", "2.5 is not possible"),
        ("steps", float("inf"), "steps", "whole number"),
        ("seed", -1, "seed", "from 0"),
        ("seed", True, "seed", "whole number"),
    ],
)
def test_a_wrong_value_is_told_at_its_own_field(name: str, value: Any, field: str, words: str) -> None:
    wrong = read({**GOOD, name: value}, CANVAS)
    assert isinstance(wrong, dict)
    assert list(wrong) == [field]
    assert field in FIELDS
    assert words in wrong[field]


def test_a_forecast_is_another_request() -> None:
    plain, forecast = read(GOOD, CANVAS), read({**GOOD, "forecast": 0.1}, CANVAS)
    assert isinstance(plain, ImageRequest)
    assert isinstance(forecast, ImageRequest)
    assert (plain.variant.tolerance, forecast.variant.tolerance) == (0.0, 0.1)
    assert plain != forecast


def test_what_is_recommended_leaves_nothing_to_choose() -> None:
    """Fields that are hidden, and whatever is in them, change nothing."""
    requests = {read({**GOOD, "method": "recommended", "ratio": ratio, "forecast": tolerance}, CANVAS)
                for ratio, tolerance in ((0.5, 0.0), (50, 0.3), (None, None))}  # fmt: skip
    (request,) = requests
    assert isinstance(request, ImageRequest)
    assert request.variant == Variant.named("recommended")


def test_a_ratio_that_is_too_much_for_the_method_is_told_at_the_ratio() -> None:
    assert isinstance(read({**GOOD, "ratio": 0.9}, CANVAS), ImageRequest)
    wrong = read({**GOOD, "ratio": 0.9, "method": "tomesd"}, CANVAS)
    assert isinstance(wrong, dict)
    assert "0.75" in wrong["ratio"]


def test_every_wrong_field_is_told_at_once() -> None:
    wrong = read({**GOOD, "prompt": "", "steps": 0, "width": 3}, CANVAS)
    assert isinstance(wrong, dict)
    assert set(wrong) == {"prompt", "steps", "size"}
