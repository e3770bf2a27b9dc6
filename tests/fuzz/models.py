"""The models that cases are about: how each is built, called, and given to another pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import diffusers
import torch
from diffusers.guiders import ClassifierFreeGuidance
from torch import Tensor

from tests import denoisers, newer_pipelines, tiny
from tests.engine.test_forecast_controlnet import flux, unet
from tests.newer_pipelines import is_modular, output_of
from tests.tiny import Tiny

if TYPE_CHECKING:
    from tests.fuzz.cases import Case

CONTROLLED = {"sdxl with ControlNet": (unet, "image"), "flux with ControlNet": (flux, "control_image")}
NEWER = {name: known for name, known in newer_pipelines.KINDS.items() if hasattr(diffusers, known.since)}
FAMILIES = ("flux", *(name for name in tiny.FAMILIES if name != "flux"), *NEWER, *CONTROLLED)
FURTHER = ("ltx", "chroma", "hunyuan_video", "cogview4", "lumina2", "cogvideox", "aura_flow", "sana")  # of one size
ONE_IMAGE = (*(name for name, known in NEWER.items() if not known.batches), *FURTHER)
MODULAR = tuple(name for name, known in NEWER.items() if known.since.endswith("ModularPipeline"))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(case: Case) -> Tiny:
    """The small pipeline, set up as the case says but not patched."""
    built = _new(case.family)
    built.pipe.set_progress_bar_config(disable=True)
    if case.scheduler != "own":
        built.pipe.scheduler = getattr(diffusers, case.scheduler).from_config(built.pipe.scheduler.config)
    if is_modular(built.pipe) and "guider" in built.pipe.components:
        built.pipe.update_components(guider=ClassifierFreeGuidance(enabled=case.guided))
    built.pipe.to(DTYPES[case.dtype])
    built.settings = {**built.settings, **output_of(built.pipe), **settings_of(case)}
    return built


def _new(family: str) -> Tiny:
    if family in NEWER:
        return newer_pipelines.build(family)
    if family in FURTHER:
        return Tiny(*denoisers.BUILDERS[family]())
    return CONTROLLED[family][0]() if family in CONTROLLED else tiny.build(family)


def settings_of(case: Case) -> dict[str, Any]:
    """How the pipeline is called, beside what every call of it is given."""
    if case.family in FURTHER:
        return {"num_inference_steps": case.steps}
    size = {"height": case.height, "width": case.width}
    if case.family in NEWER:
        known = NEWER[case.family]
        size = {name: side // 8 * known.pixels for name, side in size.items()}
        own = {**known.texts(case.images), **(known.guided if case.guided else known.unguided)}
    else:
        own = {"prompt": ["a fox", "two owls"][: case.images], **({} if case.guided else {"guidance_scale": 1.0})}
    if case.family in CONTROLLED:
        own[CONTROLLED[case.family][1]] = torch.rand(
            1, 3, case.height, case.width, generator=torch.Generator().manual_seed(3)
        )
    settings = {**size, "num_inference_steps": case.steps, **own}
    return {name: _in_dtype(value, DTYPES[case.dtype]) for name, value in settings.items()}


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [_in_dtype(one, dtype) for one in value]
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def sharing(built: Tiny, **other: Any) -> Any:
    """Another pipeline with the same components, but for ``other``."""
    parts = {**built.pipe.components, **other}
    if is_modular(built.pipe):
        pipe = built.pipe.blocks.init_pipeline()
        pipe.update_components(**parts)
    else:
        pipe = type(built.pipe)(**parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe
