"""How much of each output goes into the image, and what computed outputs make up for."""

import copy
from collections.abc import Sequence
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from tomadiff.engine.samplers import adds_noise, sizes_of, step_sizes
from tomadiff.steps.forecast import Forecast, Forecaster

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
DETERMINISTIC: dict[str, Any] = {
    "Euler, flow": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    "DPM++ 2M, flow": diffusers.DPMSolverMultistepScheduler(**FLOW),
    "UniPC, flow": diffusers.UniPCMultistepScheduler(**FLOW),
    "Euler": diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear"),
    "Euler, Karras": diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear", use_karras_sigmas=True),
    "Euler, v": diffusers.EulerDiscreteScheduler(prediction_type="v_prediction"),
    "DDIM": diffusers.DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False),
    "DPM++ 2M": diffusers.DPMSolverMultistepScheduler(beta_schedule="scaled_linear"),
    "DEIS": diffusers.DEISMultistepScheduler(beta_schedule="scaled_linear"),
}
OTHERS: dict[str, Any] = {
    "noise": diffusers.EulerAncestralDiscreteScheduler(),
    "noise, SDE": diffusers.DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++"),
    "noise, SA": diffusers.SASolverScheduler(),
    "two calls a step": diffusers.HeunDiscreteScheduler(),
    "some steps twice": diffusers.PNDMScheduler(),
}


def begun(scheduler: Any, steps: int = 20) -> Any:
    """A scheduler of one's own, at the first step."""
    own = copy.deepcopy(scheduler)
    own.set_timesteps(steps)
    return own


def output(time: float) -> Tensor:
    """Of a model that sees only the time, and bends."""
    rows = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    return (2 + torch.sin(4 * rows * time / 1000)).reshape(1, 6, 1, 1)


def image(scheduler: Any, forecast: Forecast | None = None) -> Tensor:
    """What the scheduler makes of such outputs."""
    own, forecaster = begun(scheduler), Forecaster(forecast or Forecast(0.0))
    times = own.timesteps.tolist()
    forecaster.begin(len(times), times, step_sizes(own))
    own.is_scale_input_called = True
    latents = torch.zeros(1, 6, 1, 1, dtype=torch.float64)
    for step, time in enumerate(own.timesteps):
        given = forecaster.call(step, 0, None, lambda time=time: output(float(time)))
        latents = own.step(given, time, latents, return_dict=False)[0]
    return latents


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_what_forecasts_missed_is_made_up_for(name: str) -> None:
    scheduler, pattern = DETERMINISTIC[name], (0, 1, 2, 3, 6, 9, 11, 14, 17, 19)
    full = image(scheduler)
    plain, corrected = (image(scheduler, Forecast(steps=pattern, correct=correct)) for correct in (False, True))
    assert (corrected - full).norm() < 0.5 * (plain - full).norm()


def test_the_sizes_of_euler_are_the_distances_of_noise_levels() -> None:
    scheduler = begun(DETERMINISTIC["Euler, flow"], 8)
    torch.testing.assert_close(torch.tensor(step_sizes(scheduler)), scheduler.sigmas.diff(), rtol=1e-4, atol=1e-6)


def test_in_image_to_image_only_steps_that_run_have_a_size() -> None:
    scheduler = begun(DETERMINISTIC["Euler, flow"], 8)
    scheduler.set_begin_index(3)
    sizes = step_sizes(scheduler, 3)
    assert sizes is not None
    assert sizes[:3] == (0.0, 0.0, 0.0)
    torch.testing.assert_close(torch.tensor(sizes[3:]), scheduler.sigmas.diff()[3:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_others_have_no_sizes(name: str) -> None:
    assert step_sizes(begun(OTHERS[name])) is None
    assert adds_noise(OTHERS[name]) == name.startswith("noise")


@pytest.mark.parametrize(
    ("weights", "noise", "expected"),
    [
        ((1.0, 2.0, 0.5), 0.0, (1.0, 2.0, 0.5)),
        ((1.0, 2.0, 0.5), 1.0, None),
        ((1.0, -2.0, 0.5), 0.0, None),  # no output makes up for one that counts against it
        ((1.0, 2.0, 0.5, 1.0), 0.0, None),  # it asks for more outputs than there are steps
    ],
)
def test_sizes_of_any_sampler(weights: tuple[float, ...], noise: float, expected: tuple[float, ...] | None) -> None:
    def sampled(image: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        for step, weight in enumerate(weights):
            image = image + weight * outputs[step] + noise
        return image

    assert sizes_of(sampled, 3) == (expected and pytest.approx(expected))


def test_a_loop_of_ones_own_has_no_sizes() -> None:
    assert step_sizes(None) is None
    assert step_sizes(object()) is None


@pytest.mark.parametrize("name", [*DETERMINISTIC, *OTHERS])
def test_the_scheduler_stays_as_it_was(name: str) -> None:
    scheduler = begun((DETERMINISTIC | OTHERS)[name])
    before, noise = {key: repr(value) for key, value in vars(scheduler).items()}, torch.get_rng_state()
    step_sizes(scheduler)
    assert {key: repr(value) for key, value in vars(scheduler).items()} == before
    assert torch.equal(torch.get_rng_state(), noise)
