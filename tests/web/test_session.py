"""Generating for the page, on tiny pipelines: what is cached, what is measured, and how the model comes out."""

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
from tomadiff.evaluation.runs.variants import RECOMMENDED, Variant
from tomadiff.web.progress import Stopped
from tomadiff.web.request import ImageRequest, ImageSettings
from tomadiff.web.session import TOLERANCES, Model, Session

SETTINGS = ImageSettings("tiny", "a fox", seed=3, steps=3, width=64, height=64)
REQUEST = ImageRequest(SETTINGS, Variant.named("toma", 0.5))


def at(ratio: float, method: str = "toma", **changes: Any) -> ImageRequest:
    return ImageRequest(replace(SETTINGS, **changes), Variant.named(method, ratio))


@pytest.fixture(scope="module")
def model() -> Model:
    pipe = tiny.build("sdxl").pipe
    pipe.set_progress_bar_config(disable=True)
    return Model("tiny", pipe)


@pytest.fixture
def session(model: Model) -> Session:
    return Session([model])


def unpatched(model: Model) -> np.ndarray:
    """An image of the model as it is, and proof that nothing is left on it."""
    assert MARK not in models.denoiser(model.pipe).__dict__
    noise = torch.Generator().manual_seed(0)
    generated = model.pipe("a fox", height=64, width=64, num_inference_steps=2, generator=noise, output_type="np")
    return np.asarray(generated.images)


def test_both_images_come_from_one_seed_and_differ_by_merging_alone(session: Session) -> None:
    half, nothing = session.compare(REQUEST), session.compare(at(0.0))
    assert half.before.image.size == half.after.image.size == (64, 64)
    assert half.before.image.tobytes() != half.after.image.tobytes()
    assert half.metrics["psnr"] < 100
    assert nothing.before.image.tobytes() == nothing.after.image.tobytes() == half.before.image.tobytes()
    assert nothing.metrics["psnr"] == 100
    assert half.before.seconds > 0 < half.after.seconds


def test_forecast_steps_are_another_image_and_come_off_again(session: Session, model: Model) -> None:
    plain = unpatched(model)
    forecast = replace(at(0.0, steps=8), variant=Variant.named("toma", 0.0).forecasting(1.0))
    compared = session.compare(forecast)
    assert compared.before.image.tobytes() != compared.after.image.tobytes()
    assert "of 8 steps computed" in compared.after.summary
    assert compared.after.pattern.forecast
    assert "forecast=1," in model.python(forecast)
    assert np.array_equal(unpatched(model), plain)


def test_what_is_recommended_is_one_line_without_settings(session: Session, model: Model) -> None:
    request = ImageRequest(replace(SETTINGS, steps=40), Variant.named(RECOMMENDED))
    after = session.compare(request).after
    assert after.pattern.forecast
    assert after.why.startswith("recommended for 40 steps with guidance 5")
    assert after.maps == {}
    assert "patch = tomadiff.apply(pipe)\n" in model.python(request)


def test_of_few_steps_nothing_is_forecast_and_the_reason_is_said(session: Session) -> None:
    after = session.compare(ImageRequest(SETTINGS, Variant.named(RECOMMENDED))).after
    assert not after.pattern.forecast
    assert after.why.startswith("nothing is recommended for 3 steps")


def test_the_curve_of_what_is_recommended_has_other_forecasts(session: Session) -> None:
    request = ImageRequest(replace(SETTINGS, steps=10), Variant.named(RECOMMENDED))
    found = list(session.curve(request, [0.25, 0.5]))
    assert found[0].request == request
    assert [one.request.variant.tolerance for one in found[1:]] == list(TOLERANCES)
    assert found[1].after.pattern.share >= found[-1].after.pattern.share


def test_moving_the_slider_generates_only_the_merged_image_again(session: Session) -> None:
    told: list[tuple[int, int, str]] = []
    first = session.compare(at(0.5, seed=11), lambda *progress: told.append(progress))
    assert {what for _, _, what in told} >= {"in full", "with tomadiff"}
    assert told[-1] == (6, 6, "with tomadiff")
    told.clear()
    second = session.compare(at(0.25, seed=11), lambda *progress: told.append(progress))
    assert {what for _, _, what in told} == {"with tomadiff"}
    assert told[-1] == (3, 3, "with tomadiff")
    assert second.before is first.before
    assert (first.reused, second.reused) == (False, True)
    for change in ({"seed": 12}, {"steps": 2}, {"width": 72}, {"prompt": "an owl"}):
        assert not session.compare(at(0.5, **{"seed": 11, **change})).reused


def test_no_more_is_cached_than_was_allowed(model: Model) -> None:
    session = Session([model], cached=2)
    for seed in range(4):
        session.compare(at(0.5, seed=seed, steps=1))
    assert len(session._full) == len(session._merged) == 2
    assert session.cached(at(0.5, seed=0, steps=1)) is None
    assert session.cached(at(0.5, seed=3, steps=1)) is not None


def test_every_level_and_step_has_a_map(session: Session) -> None:
    maps = session.compare(at(0.5, "toma-paper")).after.maps
    assert list(maps) == ["level 0", "level 1"]
    assert all(set(steps) == {0, 1, 2} for steps in maps.values())
    assert maps["level 0"][0].stays.shape == (16, 16)
    assert maps["level 0"][0].kept == 128
    assert maps["level 0"][0] is maps["level 0"][2]  # one plan served all three steps
    default = session.compare(REQUEST).after.maps
    assert list(default) == [f"block {place}" for place in range(11)]
    assert all(set(steps) == {0, 1, 2} for steps in default.values())
    for every in (default, session.compare(at(0.5, "tomesd")).after.maps):
        assert all(one[0] is not one[1] for one in every.values())  # planned anew at every step


def test_the_summary_is_that_of_the_patch(session: Session) -> None:
    summary = session.compare(REQUEST).after.summary
    assert "256 → 128" in summary
    assert "coverage" in summary


def test_the_curve_generates_what_is_not_at_hand(session: Session) -> None:
    told: list[tuple[int, int, str]] = []
    half = session.compare(at(0.5, seed=21))
    found = list(session.curve(at(0.5, seed=21), [0.25, 0.5], lambda *progress: told.append(progress)))
    assert [one.request.variant.ratio for one in found] == [0.25, 0.5]
    assert found[1] is half
    assert told[-1] == (3, 3, "with tomadiff")
    assert found[0].metrics["psnr"] > found[1].metrics["psnr"]


def test_a_method_with_a_ratio_of_its_own_has_one_point_on_the_curve(session: Session) -> None:
    found = list(session.curve(at(0.75, "todo"), [0.25, 0.5, 0.75]))
    assert [one.request.variant.ratio for one in found] == [0.75]


def test_a_visitor_who_leaves_leaves_the_model_as_it_was(model: Model) -> None:
    before, session, stop = unpatched(model), Session([model]), Event()
    with pytest.raises(Stopped):
        session.compare(at(0.5, steps=20), lambda done, *_: stop.set() if done == 22 else None, stop)
    assert not model.lock.locked()
    assert np.array_equal(unpatched(model), before)
    assert session.compare(at(0.5, steps=20)).reused  # the unmerged image was finished, and is not lost


def test_an_error_leaves_the_model_as_it_was(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    before, session = unpatched(model), Session([model])

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(model.pipe.unet.conv_out, "forward", fail)
        with pytest.raises(RuntimeError, match="no"):
            session.compare(REQUEST)
    assert not model.lock.locked()
    assert np.array_equal(unpatched(model), before)


def test_a_method_that_does_not_fit_the_model_says_so_before_anything_is_generated() -> None:
    told: list[Any] = []
    with pytest.raises(UnsupportedModelError, match="ToDo does not work on"):
        Session([Model("tiny", tiny.build("wan").pipe)]).compare(
            at(0.5, "todo"), lambda *progress: told.append(progress)
        )
    assert told == []


def test_a_studio_without_models_says_what_to_do() -> None:
    with pytest.raises(SettingError, match="--model"):
        Session([])


@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux", "sd3", "pixart"])
def test_the_canvas_is_what_the_pipeline_was_made_for(family: str) -> None:
    canvas = Model("tiny", tiny.build(family).pipe).canvas
    assert canvas.width == canvas.height
    assert canvas.wrong(canvas.width, canvas.height) is None or canvas.width < 64
    assert canvas.wrong(canvas.width + 1, canvas.height) is not None


@pytest.mark.skipif("emoji-sdxl" not in embedded.available(), reason="the weights of emoji-sdxl are not trained yet")
def test_three_lines_of_python_generate_the_very_image_of_the_page() -> None:
    model = Model("emoji-sdxl", models.load("emoji-sdxl", "cpu"))
    request = ImageRequest(
        ImageSettings("emoji-sdxl", "a fox on a blue background", 5, 2, 64, 96), Variant.named("toma-stripe", 0.5)
    )
    shown = Session([model]).compare(request).after.image
    namespace: dict[str, Any] = {}
    exec(model.python(request), namespace)
    assert namespace["image"].tobytes() == shown.tobytes()
    assert "judge" in Session([model]).compare(request).metrics
