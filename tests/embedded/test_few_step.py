"""LoRA files for few steps: what loads, what comes off again, and tomadiff on top in either order."""

from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff
from tomadiff import Forecast, ToMA, embedded
from tomadiff.evaluation.runs.models import denoiser

NAMES = [name for name in embedded.FEW_STEP if name in embedded.available()]
PROMPT = "a fox on a blue background"
MEANS = {"merging": ToMA(0.5), "forecast": Forecast(every=2)}

pytestmark = pytest.mark.skipif(not NAMES, reason="no LoRA for few steps ships yet")


def load_lora(pipe: Any, name: str) -> Any:
    """As a user would, into a pipeline of their own."""
    pipe.load_lora_weights(embedded.folder(name), weight_name="pytorch_lora_weights.safetensors")
    return pipe


def latents(pipe: Any, name: str) -> Tensor:
    given = embedded.settings(name) | {"output_type": "latent", "generator": torch.Generator().manual_seed(0)}
    found: Tensor = pipe(PROMPT, **given).images
    return found


def weights(pipe: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in denoiser(pipe).state_dict().items()}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_needs_four_steps_and_gives_an_image_of_its_own(name: str) -> None:
    assert embedded.settings(name)["num_inference_steps"] == 4
    pipe, plain = embedded.load(name), embedded.load(embedded.base(name))
    plain.scheduler = pipe.scheduler
    assert pipe.components.keys() == plain.components.keys()
    assert not any("lora" in key for key in weights(pipe))
    assert not torch.allclose(latents(pipe, name), latents(plain, name), atol=1e-2)


def test_fused_and_loaded_are_the_same_image(name: str) -> None:
    pipe = load_lora(embedded.load(embedded.base(name)), name)
    fused = embedded.load(name)
    pipe.scheduler = fused.scheduler
    assert torch.allclose(latents(pipe, name), latents(fused, name), atol=1e-3)


def test_loading_fusing_and_unloading_leave_the_base_as_it_was(name: str) -> None:
    pipe = embedded.load(embedded.base(name))
    before = weights(pipe)
    load_lora(pipe, name).fuse_lora()
    fused = {key.replace(".base_layer", ""): value for key, value in weights(pipe).items()}
    assert any(not torch.equal(fused[key], value) for key, value in before.items())
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    after = weights(pipe)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], value) for key, value in after.items())


@pytest.mark.parametrize("means", list(MEANS))
def test_tomadiff_goes_on_before_the_lora_or_after_it(name: str, means: str) -> None:
    scheduler = embedded.load(name).scheduler
    given = {"forecast" if means == "forecast" else "method": MEANS[means], "guard": False}
    found = []
    for first in ("lora", "patch"):
        pipe = embedded.load(embedded.base(name))
        pipe.scheduler = type(scheduler).from_config(scheduler.config)
        if first == "lora":
            load_lora(pipe, name).fuse_lora()
        patch = tomadiff.apply(pipe, **given)
        if first == "patch":
            load_lora(pipe, name).fuse_lora()
        found.append(latents(pipe, name))
        patch.remove()
        pipe.unfuse_lora()
        pipe.unload_lora_weights()
    assert torch.equal(*found)


def test_without_peft_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    with pytest.raises(embedded.MissingPeftError, match="pip install peft"):
        embedded.load(name)
