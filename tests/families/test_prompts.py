"""Every family through its pipelines, from the text of a prompt to an image."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import tomadiff
from tests import newer, prompted, prompted_images
from tests.families.test_newer_pipelines import check_merges_and_is_restored
from tests.prompted import Prompted

PROMPT, OTHER = 'fox: a sign says "A" to a fox', 'owl: a sign says "Z" to an owl'
BY_DEFAULT = ("CogView4ControlPipeline", "HunyuanVideoImageToVideoPipeline", "ZImageControlNetPipeline")
TINY = {
    "FluxPipeline", "PixArtSigmaPipeline", "StableDiffusion3Pipeline", "StableDiffusionPipeline",
    "StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline",
    "StableDiffusionXLControlNetPipeline",
}  # fmt: skip
SMALLER = {
    "LongCatImageEditPipeline": ("longcat_image.pipeline_longcat_image_edit", (40, 32)),
    "QwenImageEditPipeline": ("qwenimage.pipeline_qwenimage_edit", (160, 128, None)),
}  # images to edit have a megapixel otherwise
CASES = [pytest.param(name, marks=newer.needs(name)) for name in prompted.BUILDERS]
OTHERS = [
    pytest.param(name, marks=[newer.needs(name), *[pytest.mark.slow] * (name not in BY_DEFAULT)])
    for name in prompted_images.BUILDERS
]


@pytest.mark.parametrize("name", CASES)
def test_an_image_of_a_prompt_merges_and_is_restored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, prompted.BUILDERS[name](), monkeypatch)


@pytest.mark.parametrize("name", OTHERS)
def test_one_of_a_prompt_and_an_image_does_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in SMALLER:
        module, size = SMALLER[name]
        monkeypatch.setattr(f"diffusers.pipelines.{module}.calculate_dimensions", lambda *_: size)
    check(name, prompted_images.BUILDERS[name](), monkeypatch)


def test_every_pipeline_that_families_list_is_run() -> None:
    """Here, or with the tiny pipelines of ``test_pipelines.py``."""
    listed = {name for family in tomadiff.supported() for name in family.pipelines}
    assert listed - {*prompted.BUILDERS, *prompted_images.BUILDERS} == TINY


def check(name: str, built: Prompted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(built.pipe).__name__ == name
    module = sys.modules[type(built.pipe).__module__]
    if not hasattr(module, "ftfy"):  # some pipelines repair texts with it, whether it is installed or not
        monkeypatch.setattr(module, "ftfy", SimpleNamespace(fix_text=lambda text: text), raising=False)
    check_merges_and_is_restored(built.pipe, lambda: built.generate(PROMPT))
    assert not torch.equal(built.generate(PROMPT), built.generate(OTHER)), "what the encoder says reaches the image"
