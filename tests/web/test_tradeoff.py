import pytest
from PIL import Image

from tomadiff.web.tradeoff import COMPUTED, Shot, curves, ratios


def shot(ratio: float, seconds: float, **numbers: float) -> Shot:
    return Shot(Image.new("RGB", (32, 32)), ratio, seconds, numbers)


@pytest.mark.parametrize(
    ("asked", "expected"), [(0.5, [0.25, 0.5, 0.75]), (0.6, [0.25, 0.5, 0.6, 0.75]), (0.0, [0.25, 0.5, 0.75])]
)
def test_the_ratio_that_was_asked_for_is_on_the_curve(asked: float, expected: list[float]) -> None:
    assert ratios(asked) == expected


def test_images_curves_and_table_tell_the_same() -> None:
    shots = [shot(0.25, 2.0, psnr=30.0, ssim=0.9, judge=0.1), shot(0.5, 1.0, psnr=20.0, ssim=0.8, judge=0.2)]
    told = curves("ToMA <tile>", shot(0.0, 4.0), shots)
    assert told.count("<figure>") == 3
    assert told.count("<svg") == 4  # two metrics, over tokens and over seconds
    assert told.count("<tr>") == 4
    assert "ToMA &lt;tile&gt;, 50% merged: 20.00 in 1.00 s" in told
    assert "×" not in told, "the full image's time is from another go"
    assert "judge" in told


def test_forecasts_are_placed_by_the_steps_that_were_computed() -> None:
    told = curves("forecast", shot(1.0, 4.0), [shot(0.6, 2.5, psnr=40.0), shot(0.4, 1.9, psnr=33.0)], COMPUTED)
    assert "PSNR dB over the share of steps computed" in told
    assert told.index("40% of the steps") < told.index("60% of the steps")
    assert "merged" not in told


def test_one_point_is_a_curve_too() -> None:
    assert "<svg" in curves("ToDo", shot(0.0, 2.0), [shot(0.75, 2.0, psnr=20.0)])
