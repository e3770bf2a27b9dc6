"""How much of each output ComfyUI's samplers put into the image, and that forecasts are made up for by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny as diffusers_tiny
from tomadiff.engine.hosted import HostedRun
from tomadiff.steps.forecast import Forecast

from . import host as host
from . import tiny

import comfy.samplers  # isort: skip
from integrations.comfyui.samplers import step_sizes

PATTERN = (0, 1, 2, 3, 6, 9, 11, 14, 17, 19)
ADDED_UP = ("euler", "ddim", "dpmpp_2m", "lms", "ipndm", "deis", "res_multistep", "uni_pc")
OTHERS = {
    "noise": ("euler_ancestral", "dpmpp_2m_sde", "dpmpp_3m_sde", "lcm", "ddpm", "er_sde", "sa_solver"),
    "several calls a step": ("heun", "dpm_2", "dpmpp_sde", "seeds_2", "dpm_fast", "dpm_adaptive"),
    "guidance of their own": ("euler_cfg_pp", "dpmpp_2m_cfg_pp"),
}


@pytest.fixture(scope="module", params=["EPS", "FLOW", "V_PREDICTION"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny.unet(diffusers_tiny.sdxl_unet(), kind=request.param)


def levels(model: Any, steps: int = 20) -> Tensor:
    found = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "karras", steps)
    assert isinstance(found, Tensor)
    return found


def test_the_sizes_of_euler_are_the_distances_of_noise_levels() -> None:
    for kind in ("EPS", "FLOW"):
        model = tiny.unet(diffusers_tiny.sdxl_unet(), kind=kind)
        sizes = step_sizes(comfy.samplers.sampler_object("euler"), levels(model), model)
        torch.testing.assert_close(torch.tensor(sizes), levels(model).diff(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [name for names in OTHERS.values() for name in names])
@pytest.mark.filterwarnings("ignore")
def test_others_have_no_sizes(model: Any, name: str) -> None:
    assert step_sizes(comfy.samplers.sampler_object(name), levels(model), model) is None


@pytest.mark.parametrize("name", comfy.samplers.SAMPLER_NAMES)
@pytest.mark.filterwarnings("ignore")
def test_asking_changes_nothing(model: Any, name: str) -> None:
    """UniPC writes into the noise levels, and samplers may take random numbers from torch's own generator."""
    sigmas, noise = levels(model), torch.get_rng_state()
    step_sizes(comfy.samplers.sampler_object(name), sigmas, model)
    assert torch.equal(sigmas, levels(model))
    assert torch.equal(torch.get_rng_state(), noise)


def test_samplers_of_other_nodes_are_not_called(model: Any) -> None:
    def foreign(*_: Any, **__: Any) -> None:
        raise AssertionError("called")

    for sampler in (comfy.samplers.KSAMPLER(foreign), SimpleNamespace(sample=foreign)):
        assert step_sizes(sampler, levels(model), model) is None
    euler = comfy.samplers.sampler_object("dpmpp_2m_sde")
    euler.extra_options = {"noise_sampler": foreign}
    assert step_sizes(euler, levels(model), model) is None


# ---------------------------------------------------------------------------------------------- corrected
class Bending:
    """In place of a model: what it gives bends with the time, and a run may forecast it."""

    def __init__(self, patcher: Any, run: HostedRun) -> None:
        self.inner_model = SimpleNamespace(inner_model=patcher.model, model_patcher=patcher)
        self._sampling, self._run = patcher.get_model_object("model_sampling"), run
        self._last = float(self._sampling.timestep(self._sampling.sigma_max))

    def __call__(self, x: Tensor, sigma: Tensor, **_: Any) -> Any:
        self._run.at(float(sigma[0]))
        time = self._sampling.timestep(sigma) / self._last
        rows = torch.linspace(0.5, 1.5, 6).view(1, 6, 1, 1)
        given = self._run.outputs(0, None, lambda: 2 + torch.sin(4 * rows * time))
        return self._sampling.calculate_denoised(sigma, given, x)


def sampled(model: Any, name: str, forecast: Forecast | None) -> Tensor:
    sampler, sigmas = comfy.samplers.sampler_object(name), levels(model)
    times = model.get_model_object("model_sampling").timestep(sigmas[:-1]).tolist()
    run = HostedRun(sigmas[:-1].tolist(), times, forecast, step_sizes(sampler, sigmas, model))
    given = Bending(model, run), torch.zeros(1, 6, 1, 1), sigmas.clone()
    made = sampler.sampler_function(*given, {"seed": 0}, callback=None, disable=True, **sampler.extra_options)
    assert isinstance(made, Tensor)
    return made


@pytest.mark.parametrize("name", ADDED_UP)
def test_what_forecasts_missed_is_made_up_for(model: Any, name: str) -> None:
    full = sampled(model, name, None)
    plain, corrected = (sampled(model, name, Forecast(steps=PATTERN, correct=correct)) for correct in (False, True))
    assert (corrected - full).norm() < 0.5 * (plain - full).norm()
