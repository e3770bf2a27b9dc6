"""Drawing for the page, on tiny pipelines: what is kept, what is measured, and how the model comes out."""

from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from tests import tiny
from tomadiff import embedded
from tomadiff.engine.model import MARK
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.generate import Variant
from tomadiff.web.progress import Stopped
from tomadiff.web.request import Asked, Picture
from tomadiff.web.session import Model, Studio

PICTURE = Picture("tiny", "a fox", seed=3, steps=3, width=64, height=64)
ASKED = Asked(PICTURE, Variant("toma", 0.5))


def at(ratio: float, method: str = "toma", **changes: Any) -> Asked:
    return Asked(replace(PICTURE, **changes), Variant(method, ratio))


@pytest.fixture(scope="module")
def model() -> Model:
    pipe = tiny.build("sdxl").pipe
    pipe.set_progress_bar_config(disable=True)
    return Model("tiny", pipe)


@pytest.fixture
def studio(model: Model) -> Studio:
    return Studio([model])


def unpatched(model: Model) -> np.ndarray:
    """A picture of the model as it is, and proof that nothing is left on it."""
    assert MARK not in models.denoiser(model.pipe).__dict__
    noise = torch.Generator().manual_seed(0)
    drawn = model.pipe("a fox", height=64, width=64, num_inference_steps=2, generator=noise, output_type="np")
    return np.asarray(drawn.images)


def test_both_pictures_come_from_one_seed_and_differ_by_merging_alone(studio: Studio) -> None:
    half, nothing = studio.compare(ASKED), studio.compare(at(0.0))
    assert half.before.image.size == half.after.image.size == (64, 64)
    assert half.before.image.tobytes() != half.after.image.tobytes()
    assert half.numbers["psnr"] < 100
    assert nothing.before.image.tobytes() == nothing.after.image.tobytes() == half.before.image.tobytes()
    assert nothing.numbers["psnr"] == 100
    assert half.before.seconds > 0 < half.after.seconds


def test_moving_the_slider_draws_only_the_merged_picture_again(studio: Studio) -> None:
    told: list[tuple[int, int, str]] = []
    first = studio.compare(at(0.5, seed=11), lambda *news: told.append(news))
    assert {what for _, _, what in told} >= {"unmerged", "merged"}
    assert told[-1] == (6, 6, "merged")
    told.clear()
    second = studio.compare(at(0.25, seed=11), lambda *news: told.append(news))
    assert {what for _, _, what in told} == {"merged"}
    assert told[-1] == (3, 3, "merged")
    assert second.before is first.before
    assert (first.reused, second.reused) == (False, True)
    for change in ({"seed": 12}, {"steps": 2}, {"width": 72}, {"prompt": "an owl"}):
        assert not studio.compare(at(0.5, **{"seed": 11, **change})).reused


def test_no_more_is_kept_than_was_allowed(model: Model) -> None:
    studio = Studio([model], kept=2)
    for seed in range(4):
        studio.compare(at(0.5, seed=seed, steps=1))
    assert len(studio._unmerged) == len(studio._merged) == 2
    assert studio.kept(at(0.5, seed=0, steps=1)) is None
    assert studio.kept(at(0.5, seed=3, steps=1)) is not None


def test_every_level_and_step_has_a_map(studio: Studio) -> None:
    maps = studio.compare(at(0.5, "toma-paper")).after.maps
    assert list(maps) == ["level 0", "level 1"]
    assert all(set(steps) == {0, 1, 2} for steps in maps.values())
    assert maps["level 0"][0].stays.shape == (16, 16)
    assert maps["level 0"][0].kept == 128
    assert maps["level 0"][0] is maps["level 0"][2]  # one plan served all three steps
    ours = studio.compare(ASKED).after.maps
    assert list(ours) == [f"block {place}" for place in range(11)]
    assert all(set(steps) == {0, 1, 2} for steps in ours.values())
    for every in (ours, studio.compare(at(0.5, "tomesd")).after.maps):
        assert all(one[0] is not one[1] for one in every.values())  # planned anew at every step


def test_the_summary_is_that_of_the_patch(studio: Studio) -> None:
    summary = studio.compare(ASKED).after.summary
    assert "256 → 128" in summary
    assert "coverage" in summary


def test_the_curve_draws_what_is_not_at_hand(studio: Studio) -> None:
    told: list[tuple[int, int, str]] = []
    half = studio.compare(at(0.5, seed=21))
    found = list(studio.curve(at(0.5, seed=21), [0.25, 0.5], lambda *news: told.append(news)))
    assert [one.asked.variant.ratio for one in found] == [0.25, 0.5]
    assert found[1] is half
    assert told[-1] == (3, 3, "merged")
    assert found[0].numbers["psnr"] > found[1].numbers["psnr"]


def test_a_method_with_a_ratio_of_its_own_has_one_point_on_the_curve(studio: Studio) -> None:
    found = list(studio.curve(at(0.75, "todo"), [0.25, 0.5, 0.75]))
    assert [one.asked.variant.ratio for one in found] == [0.75]


def test_a_visitor_who_leaves_leaves_the_model_as_it_was(model: Model) -> None:
    before, studio, stop = unpatched(model), Studio([model]), Event()
    with pytest.raises(Stopped):
        studio.compare(at(0.5, steps=20), lambda done, *_: stop.set() if done == 22 else None, stop)
    assert not model.lock.locked()
    assert np.array_equal(unpatched(model), before)
    assert studio.compare(at(0.5, steps=20)).reused  # the unmerged picture was finished, and is not lost


def test_an_error_leaves_the_model_as_it_was(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    before, studio = unpatched(model), Studio([model])

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(model.pipe.unet.conv_out, "forward", fail)
        with pytest.raises(RuntimeError, match="no"):
            studio.compare(ASKED)
    assert not model.lock.locked()
    assert np.array_equal(unpatched(model), before)


def test_a_method_that_does_not_fit_the_model_says_so_before_anything_is_drawn() -> None:
    told: list[Any] = []
    with pytest.raises(UnsupportedModelError, match="ToDo does not work on"):
        Studio([Model("tiny", tiny.build("wan").pipe)]).compare(at(0.5, "todo"), lambda *news: told.append(news))
    assert told == []


def test_a_studio_without_models_says_what_to_do() -> None:
    with pytest.raises(SettingError, match="--model"):
        Studio([])


@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux", "sd3", "pixart"])
def test_the_canvas_is_what_the_pipeline_was_made_for(family: str) -> None:
    canvas = Model("tiny", tiny.build(family).pipe).canvas
    assert canvas.width == canvas.height
    assert canvas.wrong(canvas.width, canvas.height) is None or canvas.width < 64
    assert canvas.wrong(canvas.width + 1, canvas.height) is not None


@pytest.mark.skipif("emoji-sdxl" not in embedded.available(), reason="the weights of emoji-sdxl are not trained yet")
def test_three_lines_of_python_draw_the_very_picture_of_the_page() -> None:
    model = Model("emoji-sdxl", models.load("emoji-sdxl", "cpu"))
    asked = Asked(Picture("emoji-sdxl", "a fox on a blue background", 5, 2, 64, 96), Variant("toma-stripe", 0.5))
    shown = Studio([model]).compare(asked).after.image
    namespace: dict[str, Any] = {}
    exec(model.python(asked), namespace)
    assert namespace["image"].tobytes() == shown.tobytes()
    assert "judge" in Studio([model]).compare(asked).numbers
