"""The ControlNet at forecast steps: it is left out, and the image is the same as if it were not."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tests.engine.test_forecast_model import EVERY, counted
from tests.families.test_pipelines import _controlled, _picture
from tomadiff import Forecast
from tomadiff.errors import PatchError

STEPS = 8
COMPUTED = 5  # of them, by EVERY


def unet() -> tiny.Tiny:
    one = tiny.Tiny(_controlled(tiny.build("sdxl")), {"image": _picture()[..., :32, :32], "height": 32, "width": 32})
    nn.init.normal_(one.pipe.controlnet.controlnet_mid_block.weight, std=0.2)
    return one


def several() -> tiny.Tiny:
    one = unet()
    nets = diffusers.MultiControlNetModel([one.pipe.controlnet, one.pipe.controlnet])
    pipe = diffusers.StableDiffusionXLControlNetPipeline.from_pipe(one.pipe, controlnet=nets)
    return tiny.Tiny(pipe, {**one.settings, "image": [one.settings["image"]] * 2})


def flux() -> tiny.Tiny:
    one = tiny.build("flux")
    torch.manual_seed(4)
    config = {**one.model.config, "num_layers": 1, "num_single_layers": 1}
    net = diffusers.FluxControlNetModel.from_config(config)
    for block in (*net.controlnet_blocks, *net.controlnet_single_blocks, net.controlnet_x_embedder):
        nn.init.normal_(block.weight, std=0.1)
    pipe = diffusers.FluxControlNetPipeline(**one.pipe.components, controlnet=net.eval())
    return tiny.Tiny(pipe, {**one.settings, "control_image": _picture()})


def generate(one: tiny.Tiny, **settings: Any) -> Tensor:
    return one.draw(num_inference_steps=STEPS, output_type="latent", **settings)


def without(one: tiny.Tiny, forecast: Forecast = EVERY, **settings: Any) -> Tensor:
    """The image with a ControlNet that is computed at every step: a bare model has none."""
    with tomadiff.apply(one.model, forecast=forecast):
        return generate(one, **settings)


@pytest.mark.parametrize("build", [unet, several, flux])
def test_it_is_left_out_at_forecast_steps(build: Any) -> None:
    one = build()
    net, before = one.pipe.controlnet, set(vars(one.pipe.controlnet))
    plain, expected = generate(one), without(one)
    assert not torch.equal(plain, expected)
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch, counted(net) as calls:
        assert torch.equal(generate(one), expected)
        assert len(calls) == COMPUTED
        assert "ControlNet: 5 of 8 calls computed" in patch.summary()
        assert torch.equal(generate(one), expected)
        assert len(calls) == 2 * COMPUTED
    assert torch.equal(generate(one), plain)
    assert set(vars(net)) == before


def test_it_follows_a_tolerance() -> None:
    one = unet()
    expected = without(one, Forecast(1.0))
    with tomadiff.apply(one.pipe, forecast=1.0) as patch, counted(one.pipe.controlnet) as calls:
        assert torch.equal(generate(one), expected)
        assert len(calls) == len(patch.pattern.computed) < STEPS


def test_it_is_computed_where_its_outputs_are_changed_on_the_way() -> None:
    one = unet()
    one.settings["guess_mode"] = True
    expected = without(one)
    with tomadiff.apply(one.pipe, forecast=EVERY) as patch, counted(one.pipe.controlnet) as calls:
        assert torch.equal(generate(one), expected)
        assert len(calls) == STEPS
        assert "8 of 8 calls" in patch.summary()


@pytest.mark.parametrize("late", [2, 3])
def test_it_is_computed_after_all_if_the_denoiser_is(late: int) -> None:
    """At step 4 arguments of the denoiser change, which those of the ControlNet do not tell."""

    def change(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        if step == late:
            pipe._cross_attention_kwargs = {"scale": 1.0}
        return inputs

    one = unet()
    every = Forecast(steps=(0, 1, 2, 5, 7))
    expected = without(one, every, callback_on_step_end=change)
    with tomadiff.apply(one.pipe, forecast=every) as patch, counted(one.pipe.controlnet) as calls:
        assert torch.equal(generate(one, callback_on_step_end=change), expected)
        assert late + 1 in patch.pattern.computed
        assert len(calls) == len(patch.pattern.computed) == 6


def test_another_image_after_an_interrupt() -> None:
    def stop(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step >= 1
        return inputs

    one = unet()
    expected = without(one)
    with tomadiff.apply(one.pipe, forecast=EVERY):
        generate(one, callback_on_step_end=stop)
        assert torch.equal(generate(one), expected)


def test_another_thread_does_not_touch_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between a ControlNet that was left out and a denoiser that is computed after all."""
    from tomadiff.engine.controlnet import ForecastControl

    def change(pipe: Any, step: int, _: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            pipe._cross_attention_kwargs = {"scale": 1.0}
        return inputs

    one, every = unet(), Forecast(steps=(0, 1, 2, 5, 7))
    other = tiny.Tiny(type(one.pipe).from_pipe(one.pipe, scheduler=copy.copy(one.pipe.scheduler)), one.settings)
    expected = without(one, every, callback_on_step_end=change)
    stand_in, refused = ForecastControl._stand_in, list[Exception]()

    def intrude() -> None:
        with pytest.raises(PatchError, match="another thread") as caught:
            generate(other)
        refused.append(caught.value)

    def interrupted(self: Any, call: Any) -> Any:
        empty = stand_in(self, call)
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        return empty

    monkeypatch.setattr(ForecastControl, "_stand_in", interrupted)
    with tomadiff.apply(one.pipe, forecast=every):
        assert torch.equal(generate(one, callback_on_step_end=change), expected)
    assert len(refused) == 3


def test_copies_compute_it_and_pickles_are_plain() -> None:
    one = unet()
    net, before = one.pipe.controlnet, set(vars(one.pipe.controlnet))
    expected = without(one)
    patch = tomadiff.apply(one.pipe, forecast=EVERY)
    twin = tiny.Tiny(copy.deepcopy(one.pipe), one.settings)
    assert set(vars(pickle.loads(pickle.dumps(net)))) == before
    with counted(net) as calls, counted(twin.pipe.controlnet) as copied:
        assert torch.equal(generate(twin), expected)
        assert not calls
        assert len(copied) == STEPS
        tomadiff.apply(twin.pipe, forecast=EVERY)
        assert torch.equal(generate(twin), expected)
        assert len(copied) == STEPS + COMPUTED
    tomadiff.remove(twin.pipe)
    assert set(vars(twin.pipe.controlnet)) == before
    tomadiff.apply(one.pipe, forecast=EVERY)
    patch.remove()
    with counted(net) as calls:
        assert torch.equal(generate(one), expected)
        assert len(calls) == COMPUTED, "an old patch does not take a new one off"
