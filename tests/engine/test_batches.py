"""With ``share="sample"`` an image in a batch is the image alone, up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff
from tests import tiny
from tomadiff import Grid, ToFu, ToMA, ToMeSD
from tomadiff.methods.base import Method

METHODS: dict[str, Method] = {
    "default": ToMA(0.5, share="sample"),
    "paper": ToMA.tile(0.5, share="sample"),
    "whole": ToMA.whole(0.5, share="sample"),
    "shared quota": ToMA(0.5, share="sample", quota="shared", unmerge="transpose"),
    "random": ToMA(0.5, share="sample", selector="random"),
    "k-means": ToMA(0.5, share="sample", selector="kmeans"),
    "pseudo-inverse": ToMA(0.5, share="sample", unmerge="pseudo-inverse"),
    "ToMeSD": ToMeSD(0.5),
    "ToFu": ToFu(0.5),
}


@pytest.mark.parametrize("name", METHODS)
def test_plans_do_not_look_at_the_neighbours(name: str) -> None:
    method, grid = METHODS[name], Grid(8, 12)
    tokens = torch.randn(3, grid.tokens, 8, generator=torch.Generator().manual_seed(0))
    together = method.plan(tokens, grid)
    outputs = together.unmerge(together.merge(tokens))
    for sample, output in zip(tokens.split(1), outputs.split(1), strict=True):
        alone = method.plan(sample, grid)
        torch.testing.assert_close(alone.unmerge(alone.merge(sample)), output, atol=1e-5, rtol=1e-5)


def _generated(pipe: Any, prompts: list[str], seeds: list[int], **call: Any) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    dice = [torch.Generator().manual_seed(seed) for seed in seeds]
    call = {"num_inference_steps": 3, "height": 32, "width": 32, "output_type": "latent", **call}
    images = pipe(prompts, generator=dice, **call).images
    assert isinstance(images, Tensor)
    return images


@pytest.mark.parametrize("guidance", [0.0, 5.0])
@pytest.mark.parametrize("method", ["default", "paper", "ToMeSD"])
def test_an_image_in_a_batch_is_the_image_alone(method: str, guidance: float) -> None:
    """Also where all images of the batch start from equal noise, which looks like guidance."""
    pipe = tiny.build("sdxl").pipe.to(torch.float64)  # where rounding flips no choice
    tomadiff.apply(pipe, METHODS[method], guard=False)
    prompts, seeds = ["a fox", "a house", "the sea"], [4, 4, 4]
    batch = _generated(pipe, prompts, seeds, guidance_scale=guidance)
    for prompt, seed, image in zip(prompts, seeds, batch.split(1), strict=True):
        alone = _generated(pipe, [prompt], [seed], guidance_scale=guidance)
        torch.testing.assert_close(alone, image, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"quota": "equal", "proportional": False}, {"span": "block"}])
def test_images_of_flux_run_one_by_one(settings: dict[str, Any]) -> None:
    """It has one table of positions for all images of a batch, so those with destinations of their own take turns."""
    one = tiny.build("flux")
    one.pipe.to(torch.float64)
    tomadiff.apply(one.pipe, 0.5, share="sample", guard=False, **settings)
    prompts, call = ["a fox", "a house", "the sea"], {"max_sequence_length": 12}
    batch = _generated(one.pipe, prompts, [1, 2, 3], **call)
    for prompt, seed, image in zip(prompts, [1, 2, 3], batch.split(1), strict=True):
        alone = _generated(one.pipe, [prompt], [seed], **call)
        torch.testing.assert_close(alone, image, atol=1e-5, rtol=1e-5)


def test_images_of_qwen_run_one_by_one() -> None:
    model, inputs = tiny.qwen_image()
    model.double()
    call = {name: value.double() if is_float(value) else value for name, value in inputs(batch=2).items()}
    tomadiff.apply(model, 0.5, share="sample", guard=False)
    with torch.no_grad():
        together = model(**call)[0]
        for number in range(2):
            tomadiff.apply(model, 0.5, share="sample", guard=False)
            one = slice(number, number + 1)
            alone = model(**{name: value if name == "return_dict" else value[one] for name, value in call.items()})[0]
            torch.testing.assert_close(alone, together[one], atol=1e-5, rtol=1e-5)


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
