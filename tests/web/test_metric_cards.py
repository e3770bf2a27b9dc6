from pathlib import Path

import huggingface_hub
import pytest
from PIL import Image

from tomadiff import embedded
from tomadiff.evaluation.metrics.networks import NETWORKS, at_hand, openers
from tomadiff.evaluation.runs.synthetic_image import synthetic_image
from tomadiff.web.metric_cards import apart, cards


def image(seed: int) -> Image.Image:
    return Image.fromarray((synthetic_image(64, seed=seed) * 255).astype("uint8"))


def test_equal_images_are_equal_and_others_are_not() -> None:
    same, other = apart(image(7), image(7), {}), apart(image(7), image(8), {})
    assert same == {"psnr": 100.0, "ssim": pytest.approx(1)}
    assert other["psnr"] < 40
    assert other["ssim"] < 0.9
    assert "<dd>equal</dd>" in cards(1, 1, same)
    assert "<dd>equal</dd>" not in cards(1, 1, other)


@pytest.mark.skipif("emoji-judge" not in embedded.available(), reason="emoji-judge is not trained yet")
def test_a_network_adds_its_distance() -> None:
    judge = openers(["judge"])["judge"]()
    assert apart(image(7), image(7), {"judge": judge})["judge"] == pytest.approx(0, abs=1e-6)
    assert apart(image(7), image(8), {"judge": judge})["judge"] > 1e-4


def test_cards_tell_times_speed_up_and_where_the_full_image_is_from() -> None:
    shown = cards(3.0, 2.0, {"psnr": 21.5, "judge": -1e-9})
    assert "-0.0" not in shown
    for words in ("3.00 s", "2.00 s", "1.50×", "21.50", "PSNR dB", "in full"):
        assert words in shown
    assert "cached" not in shown
    kept = cards(3.0, 2.0, {}, reused=True)
    assert "in full, cached" in kept
    assert "×" not in kept, "a time of another go is compared with nothing"
    assert "×" not in cards(3.0, 2.0, {}, title="")


def test_networks_at_hand_are_those_whose_files_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "available", lambda: ("emoji-sdxl",))
    assert at_hand() == ()
    folder = tmp_path / f"models--{NETWORKS['dino'].source.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    for name in ("config.json", "preprocessor_config.json"):
        (folder / "snapshots" / "abc" / name).touch()
    assert at_hand() == ()  # a download that was cut short
    (folder / "snapshots" / "abc" / "model.safetensors").touch()
    monkeypatch.setattr(embedded, "available", lambda: ("emoji-sdxl", "emoji-judge"))
    assert at_hand() == ("judge", "dino")
