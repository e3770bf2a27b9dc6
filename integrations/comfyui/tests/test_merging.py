"""Tokens merge in ComfyUI's models as in those of diffusers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff
from tests import tiny as diffusers_tiny
from tomadiff.errors import TomaError

from . import host as host
from . import reference, tiny

import comfy.samplers  # isort: skip
from integrations.comfyui import families
from integrations.comfyui.nodes import METHODS, Accelerate, Summary
from integrations.comfyui.sampling import Acceleration


def accelerated(
    model: Any, ratio: float = 0.5, forecast: float = 0.0, method: str = "toma", guard: bool = False
) -> Any:
    return Accelerate.execute(model, "manual", ratio, forecast, method, guard=False).args[0]


def summary(model: Any) -> str:
    found = Acceleration.of(model)
    assert found is not None
    return found.summary


@pytest.fixture(scope="module")
def sdxl() -> tuple[Any, Any, list[Any], list[Any]]:
    source = diffusers_tiny.sdxl_unet().double()
    model = tiny.unet(source)
    return model, source, tiny.text(model, 1, 32), tiny.text(model, 2, 32)


@pytest.fixture(scope="module")
def flux() -> tuple[Any, Any, list[Any]]:
    source = diffusers_tiny.flux_transformer().double()
    model = tiny.flux(source)
    return model, source, tiny.text(model, 1, 32, guidance=3.5)


def far(one: Tensor, other: Tensor) -> float:
    """In standard deviations: an untrained model removes no noise, so its latents are large."""
    return float((one - other).abs().max() / other.std())


def test_ratio_0_changes_no_bit(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    assert torch.equal(tiny.sample(accelerated(model, 0.0), positive, negative), tiny.sample(model, positive, negative))


def test_sdxl_changes_where_the_built_in_node_does_nothing(sdxl: Any) -> None:
    from comfy_extras.nodes_tomesd import TomePatchModel

    model, _, positive, negative = sdxl
    plain = tiny.sample(model, positive, negative)
    built_in = TomePatchModel.execute(model, 0.5).args[0]
    assert far(tiny.sample(built_in, positive, negative), plain) == 0.0
    ours = accelerated(model)
    assert far(tiny.sample(ours, positive, negative), plain) > 1e-3
    assert "50.0%" in summary(ours)
    assert "unmerged: " not in summary(ours)


def sigmas_of(model: Any, steps: int = 6) -> Tensor:
    return comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "normal", steps)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75])
def test_sdxl_equals_diffusers(sdxl: Any, ratio: float) -> None:
    model, source, positive, negative = sdxl
    ours = tiny.sample(accelerated(model, ratio) if ratio else model, positive, negative, cfg=3.0)
    predict = reference.unet(model, source, positive, negative, cfg=3.0)
    with tomadiff.apply(source, ratio, guard=False) as patch:
        theirs = reference.euler(model, predict, sigmas_of(model), patch, (1, 4, 32, 32))
    assert far(ours, theirs) < 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_every_method_merges_in_a_unet(sdxl: Any, method: str) -> None:
    model, source, positive, negative = sdxl
    chosen = accelerated(model, 0.5, method=method)
    ours = tiny.sample(chosen, positive, negative)
    named, schedule = tomadiff.methods.registry.named(method, 0.5)
    with tomadiff.apply(source, named, schedule=schedule, guard=False) as patch:
        predict = reference.unet(model, source, positive, negative, cfg=3.0)
        theirs = reference.euler(model, predict, sigmas_of(model), patch, (1, 4, 32, 32))
    assert far(ours, theirs) < 1e-4
    assert far(ours, tiny.sample(model, positive, negative)) > 1e-4


def automatic(model: Any, guard: bool) -> Any:
    return Accelerate.execute(model, "auto", 0.5, 0.05, "toma", guard).args[0]


def test_auto_merges_in_short_runs_and_forecasts_in_long_ones(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    ours = automatic(model, guard=False)
    tiny.sample(ours, positive, negative, steps=4)
    assert "256 → 160" in summary(ours)
    assert "computed" not in summary(ours)
    tiny.sample(ours, positive, negative, steps=12)
    assert "of 12 steps computed" in summary(ours)
    assert "→" not in summary(ours)
    tiny.sample(ours, positive, negative, steps=12, cfg=6.0)
    assert "12 steps with guidance 6: tolerance 0.025" in summary(ours)


def test_the_guard_leaves_small_images_alone_and_says_so(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    ours = automatic(model, guard=True)
    assert torch.equal(tiny.sample(ours, positive, negative, steps=4), tiny.sample(model, positive, negative, steps=4))
    assert "nothing is merged: merging would not be faster" in summary(ours)


def test_a_model_that_cannot_merge_is_an_error_in_manual_and_forecast_in_auto(
    sdxl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, positive, negative = sdxl
    monkeypatch.setattr(families, "FAMILIES", ())
    with pytest.raises(TomaError, match="Set the ratio to 0"):
        accelerated(model, 0.5)
    accelerated(model, 0.0, 0.05)
    ours = automatic(model, guard=False)
    assert torch.equal(tiny.sample(ours, positive, negative, steps=4), tiny.sample(model, positive, negative, steps=4))
    assert "nothing is merged: tokens cannot merge in UNetModel" in summary(ours)


def test_the_summary_node(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    latents: dict[str, Any] = {"samples": torch.zeros(1)}
    text, passed = Summary.execute(model, latents).args
    assert "not accelerated" in text
    assert passed is latents
    ours = accelerated(model, 0.5)
    assert "Nothing was sampled" in Summary.execute(ours, latents).args[0]
    tiny.sample(ours, positive, negative)
    shown = Summary.execute(ours, latents)
    assert "256 → 128" in shown.args[0]
    assert shown.ui.as_dict() == {"text": (shown.args[0],)}
