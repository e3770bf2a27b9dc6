"""Steps are forecast around everything that ComfyUI computes for one, on any model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor

import tomadiff
from tests import tiny as diffusers_tiny
from tomadiff import embedded

from . import host as host
from . import tiny

import comfy.sample  # isort: skip
from integrations.comfyui.nodes import Accelerate

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


# ---------------------------------------------------------------------------------------------- a trained model
def image_of(pipe: Any, latents: Tensor) -> Tensor:
    with torch.no_grad():
        return (pipe.vae.decode(latents / pipe.vae.config.scaling_factor)[0] / 2 + 0.5).clamp(0, 1)


def psnr(one: Tensor, other: Tensor) -> float:
    return float(-10 * (one - other).square().mean().log10())


@dataclass(frozen=True)
class Emoji:
    """20 steps of emoji-sdxl, as a pipeline of diffusers and as a model of ComfyUI.

    Of the first order, the scheduler of the pipeline is what ComfyUI calls "euler", but that it rounds timesteps: so
    ComfyUI's model does too.
    """

    pipe: Any
    call: dict[str, Any]
    model: Any

    @classmethod
    def load(cls) -> Emoji:
        pipe = embedded.load("emoji-sdxl")
        pipe.set_progress_bar_config(disable=True)
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config, solver_order=1)
        names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
        texts = pipe.encode_prompt("a fox", device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=True)
        call = {
            **dict(zip(names, texts, strict=True)), "latents": comfy.sample.prepare_noise(torch.zeros(1, 4, 64, 64), 0),
            "num_inference_steps": 20, "guidance_scale": 3.0, "height": 128, "width": 128, "output_type": "latent",
        }  # fmt: skip
        model = tiny.unet(pipe.unet, kind="FLOW")
        sampling = model.get_model_object("model_sampling")
        exact = sampling.timestep
        sampling.timestep = lambda sigma: exact(sigma).floor()
        return cls(pipe, call, model)

    def in_diffusers(self) -> Tensor:
        return image_of(self.pipe, self.pipe(**self.call).images)

    def in_comfyui(self, patcher: Any) -> Tensor:
        size = {"width": self.call["width"], "height": self.call["height"]}
        positive, negative = (
            [[self.call[f"{sign}prompt_embeds"], {"pooled_output": self.call[f"{sign}pooled_prompt_embeds"], **size}]]
            for sign in ("", "negative_")
        )
        sigmas = self.pipe.scheduler.sigmas.clone()
        latents = tiny.sample(patcher, positive, negative, cfg=3.0, size=(64, 64), sigmas=sigmas)
        return image_of(self.pipe, self.model.model.process_latent_in(latents))

    @cached_property
    def full(self) -> tuple[Tensor, Tensor]:
        """With every step computed: in diffusers, in ComfyUI."""
        return self.in_diffusers(), self.in_comfyui(self.model)


@pytest.fixture(scope="module")
def emoji() -> Emoji:
    return Emoji.load()


def test_emoji_sdxl_is_the_same_in_both(emoji: Emoji) -> None:
    assert psnr(*emoji.full) > 60


@pytest.mark.parametrize("tolerance", [0.05, 0.1, None], ids=["0.05", "0.1", "auto"])
def test_emoji_sdxl_is_as_far_from_the_full_image_as_in_diffusers(emoji: Emoji, tolerance: float | None) -> None:
    """Within .1 dB; "auto" of the node does what ``apply(pipe)`` does."""
    full, full_in_comfyui = emoji.full
    with tomadiff.apply(emoji.pipe, forecast=tolerance) as patch:
        theirs, pattern = psnr(emoji.in_diffusers(), full), patch.pattern
    given = ("manual", 0.0, tolerance) if tolerance else ("auto", 0.5, 0.05)
    patcher = Accelerate.execute(emoji.model, *given, "toma", guard=True).args[0]
    ours = psnr(emoji.in_comfyui(patcher), full_in_comfyui)
    print(f"ComfyUI {ours:.2f} dB, diffusers {theirs:.2f} dB; {pattern}; {summary(patcher)}")
    assert abs(ours - theirs) < 0.1
    assert f"{len(pattern.computed)} of 20 steps computed" in summary(patcher)
