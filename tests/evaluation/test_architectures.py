"""Published sizes, typed in here from their papers and model cards; everything else follows from the configurations."""

from __future__ import annotations

import pytest
import torch

import tomadiff
from tomadiff.errors import SettingError
from tomadiff.evaluation.runs.flops import count
from tomadiff.evaluation.timing.architectures import ARCHITECTURES, build, inputs

PUBLISHED = {  # millions of parameters, TFLOP of one unmerged call
    "sdxl": (2567.5, 6.761),
    "flux": (11901.4, 74.4),
    "sd3": (8056.6, 31.1),
    "sd15": (859.5, 0.803),
    "pixart": (610.9, 6.63),
}


LONG = {"sdxl", "flux", "sd3"}  # seconds each, on the meta device


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in PUBLISHED]
)
def test_every_architecture_has_its_published_size(name: str) -> None:
    model = build(name)
    millions, tera = PUBLISHED[name]
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
    assert count(model, inputs(name)) / 1e12 == pytest.approx(tera, rel=0.01)
    assert all(weight.is_meta for weight in model.parameters())


BILLIONS = {"flux3": 5.5, "z-image": 6.2, "flux2-klein": 3.9, "qwen-image-2.1": 7.1, "anima": 2.0, "krea2": 12.8}


def test_all_are_known() -> None:
    assert {*PUBLISHED, *BILLIONS} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", BILLIONS)
def test_newer_architectures(name: str) -> None:
    """One block of each kind runs, and merges."""
    pytest.importorskip("diffusers", minversion="0.42")
    with torch.no_grad(), tomadiff.apply(build(name, depth=1), 0.5, guard=False) as patch:
        patch.step(0)
        patch._models[0].model(**inputs(name, 256))
        assert {plan.tokens for plan in patch.plans().values()} == {256}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_newer_architectures_have_their_size(name: str, billions: float) -> None:
    pytest.importorskip("diffusers", minversion="0.42")
    assert sum(weight.numel() for weight in build(name).parameters()) / 1e9 == pytest.approx(billions, abs=0.05)


def test_depth_keeps_some_blocks_of_every_stack() -> None:
    flux, sdxl = build("flux", depth=2), build("sdxl", depth=1)
    assert (len(flux.transformer_blocks), len(flux.single_transformer_blocks)) == (2, 2)
    assert sdxl.config.transformer_layers_per_block == (1, 1, 1)


def test_on_a_real_device_the_weights_are_noise_that_keeps_its_measure() -> None:
    model, again = build("pixart", "cpu", depth=1), build("pixart", "cpu", depth=1)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), again.parameters(), strict=True))
    with torch.no_grad():
        (out,) = model(**inputs("pixart", 64, "cpu", batch=2), return_dict=False)
    assert out.shape == (2, 8, 8, 8)
    assert out.isfinite().all()
    assert 1e-3 < out.std() < 1e3


def test_other_dtypes() -> None:
    given = inputs("flux", 256, dtype=torch.bfloat16)
    assert given["hidden_states"].shape == (1, 256, 64)
    with torch.no_grad():
        (out,) = build("flux", depth=1, dtype=torch.bfloat16)(**given, return_dict=False)
    assert out.dtype == torch.bfloat16


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(SettingError, match="'sdxl'"):
        build("sdxxl")
    with pytest.raises(SettingError, match="multiple of 32"):
        inputs("sdxl", 1000)
    with pytest.raises(SettingError, match="depth"):
        build("flux", depth=0)
