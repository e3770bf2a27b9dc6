"""Steps are forecast around everything that ComfyUI computes for one, on any model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import tiny as diffusers_tiny

from . import host as host
from . import tiny
from .test_merging import accelerated, far, flux, sdxl, summary

_FIXTURES = sdxl, flux  # used by their names


class Counted:
    """Counts calls of a diffusion model."""

    def __init__(self, model: Any) -> None:
        self.calls = 0
        self._handle = model.model.diffusion_model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


def test_tolerance_0_changes_no_bit(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    plain = tiny.sample(model, positive, negative, steps=12)
    assert torch.equal(tiny.sample(accelerated(model, 0.0, 0.0), positive, negative, steps=12), plain)


@pytest.mark.parametrize("cfg", [1.0, 3.0])
@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "heun", "dpm_2", "uni_pc", "lcm"])
def test_steps_are_forecast_and_a_second_run_is_equal(sdxl: Any, sampler: str, cfg: float) -> None:
    model, _, positive, negative = sdxl
    settings = {"steps": 16, "sampler": sampler, "cfg": cfg}
    with Counted(model) as full:
        plain = tiny.sample(model, positive, negative, **settings)
    ours = accelerated(model, 0.0, 0.5)
    with Counted(model) as less:
        first = tiny.sample(ours, positive, negative, **settings)
    if sampler != "lcm":  # its noise is nothing that could be forecast
        assert less.calls < full.calls
        assert "forecast" in summary(ours).lower()
    assert torch.equal(tiny.sample(ours, positive, negative, **settings), first)
    assert torch.equal(tiny.sample(model, positive, negative, **settings), plain), "the model is as it was"


def test_other_sizes_batches_and_guidance_follow(sdxl: Any) -> None:
    """One node, many runs: each is as with a node of its own."""
    model, _, positive, negative = sdxl
    ours = accelerated(model, 0.25, 0.5)
    for settings in ({}, {"size": (24, 40)}, {"batch": 2}, {"cfg": 1.0}, {"sampler": "heun"}, {}):
        fresh = tiny.sample(accelerated(model, 0.25, 0.5), positive, negative, steps=12, **settings)
        assert torch.equal(tiny.sample(ours, positive, negative, steps=12, **settings), fresh), settings


def test_conditions_that_run_one_by_one_give_what_they_give_together(sdxl: Any, monkeypatch: Any) -> None:
    """ComfyUI stacks them as memory allows."""
    import comfy.model_management

    model, _, positive, negative = sdxl
    together = tiny.sample(accelerated(model, 0.0, 0.2), positive, negative, steps=12)
    free = [1 << 40]
    monkeypatch.setattr(comfy.model_management, "get_free_memory", lambda *_, **__: free[0])
    ours = accelerated(model, 0.0, 0.2)
    with Counted(model) as stacked:
        assert torch.equal(tiny.sample(ours, positive, negative, steps=12), together)
    free[0] = 0
    with Counted(model) as single:
        assert far(tiny.sample(ours, positive, negative, steps=12), together) < 1e-4
    assert single.calls == 2 * stacked.calls


def test_guidance_that_ends_early_starts_over(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    sigmas = model.get_model_object("model_sampling").percent_to_sigma(0.5)
    (text, others), *_ = negative
    ending = [[text, {**others, "timestep_end": 0.0, "timestep_start": sigmas}]]
    ours = accelerated(model, 0.0, 0.5)
    result = tiny.sample(ours, positive + ending, negative, steps=20)
    assert torch.equal(tiny.sample(ours, positive + ending, negative, steps=20), result)
    assert far(result, tiny.sample(model, positive + ending, negative, steps=20)) < 5.0


@pytest.mark.parametrize("kind", ["EPS", "V_PREDICTION", "FLOW", "EDM"])
def test_whatever_a_model_predicts(kind: str) -> None:
    model = tiny.unet(diffusers_tiny.sdxl_unet(), kind=kind)
    positive, negative = tiny.text(model, 1, 32), tiny.text(model, 2, 32)
    plain = tiny.sample(model, positive, negative, steps=16)
    ours = accelerated(model, 0.0, 0.3)
    with Counted(model) as less:
        result = tiny.sample(ours, positive, negative, steps=16)
    assert less.calls < 16
    assert result.isfinite().all()
    assert far(result, plain) < 0.5 * float(plain.abs().max())


def test_flux_steps_are_forecast(flux: Any) -> None:
    model, _, positive = flux
    ours = accelerated(model, 0.0, 0.3)
    with Counted(model) as less:
        tiny.sample(ours, positive, positive, steps=16, cfg=1.0)
    assert less.calls < 16
