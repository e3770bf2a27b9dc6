"""Published sizes, typed in here from their papers and model cards; everything else follows from the configurations."""

from __future__ import annotations

import pytest
import torch

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
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in ARCHITECTURES]
)
def test_every_architecture_has_its_published_size(name: str) -> None:
    model = build(name)
    millions, tera = PUBLISHED[name]
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
    assert count(model, inputs(name)) / 1e12 == pytest.approx(tera, rel=0.01)
    assert all(weight.is_meta for weight in model.parameters())


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
