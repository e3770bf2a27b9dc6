"""The scale of classifier-free guidance: which pipelines say it, and that what is recommended follows it."""

from __future__ import annotations

from typing import Any

import pytest

import tomadiff
from tests import prompted, tiny
from tests.engine.test_driver import generate_by_blocks, modular

STEPS = 10


def why(one: tiny.Tiny, **call: Any) -> str:
    """What ``apply(pipe)`` says of an image."""
    with tomadiff.apply(one.pipe) as patch:
        one.draw(num_inference_steps=STEPS, **call)
        return patch.summary()


@pytest.mark.parametrize(("scale", "told"), [(3.0, "10 steps: tolerance 0.1"), (6.0, "guidance 6: tolerance 0.025")])
def test_strong_guidance_takes_a_smaller_tolerance(scale: float, told: str) -> None:
    assert told in why(tiny.build("sdxl"), guidance_scale=scale)


def test_guidance_that_the_model_is_given_does_not_count() -> None:
    flux = tiny.build("flux")
    assert "10 steps: tolerance 0.1" in why(flux, guidance_scale=6.0)
    assert "guidance 6: tolerance" in why(flux, negative_prompt="rain", true_cfg_scale=6.0)


def test_pipelines_that_keep_their_scale_to_themselves() -> None:
    one = prompted.qwen_image()
    with tomadiff.apply(one.pipe) as patch:
        one.call |= {"num_inference_steps": STEPS, "true_cfg_scale": 6.0}
        one.generate("a fox")
        assert "guidance 6: tolerance" in patch.summary()


def test_guiders_say_their_scale() -> None:
    one = tiny.build("sdxl")
    pipe = modular(one)
    pipe.guider.guidance_scale = 6.0
    with tomadiff.apply(pipe) as patch:
        generate_by_blocks(pipe, one, num_inference_steps=STEPS)
        assert "guidance 6: tolerance" in patch.summary()
