"""The small trained pipelines that ship with the package: real images with no download.

They are ordinary diffusers folders made of the very classes users run, trained by us on openly licensed emoji
(see `training/` in the repository).  A small model of emoji stands in for SDXL or Flux in tests; it does not replace
them.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tomadiff.errors import SettingError, TomaError, require_choice
from tomadiff.utils.memory import keep_memory

NAMES = ("emoji-sdxl", "emoji-flux", "emoji-judge")
FEW_STEP = {"emoji-sdxl-4step": "emoji-sdxl"}
"""LoRA files for few steps, and the pipelines that they are for."""
_STAND_FOR = {"sdxl": "SDXL", "flux": "Flux.1"}  # real models, which the embedded ones resemble


class MissingWeightsError(TomaError, FileNotFoundError):
    """The weights of an embedded model are not part of this installation."""


class MissingPeftError(TomaError, ImportError):
    """A LoRA cannot be loaded without the package peft."""


class OldVersionError(TomaError, ImportError):
    """What is installed is too old for the embedded models."""


def folder(name: str) -> Path:
    """Where the files of `name` (of `NAMES` or `FEW_STEP`) lie; raises if they are not part of this installation."""
    if f"emoji-{name}" in NAMES:
        raise SettingError(not_embedded(name))
    require_choice("name", name, (*NAMES, *FEW_STEP))
    path = Path(__file__).parent / name
    if not any(path.rglob("*.safetensors")):
        raise MissingWeightsError(
            f"The weights of {name} are not in {path}; there: {available() or 'none'}; `make train` makes them."
        )
    return path


def not_embedded(name: str) -> str:
    """What to tell someone who gives the name of a real model, or of emoji-judge without "emoji-"."""
    real = f" For {_STAND_FOR[name]} itself load the pipeline with diffusers." if name in _STAND_FOR else ""
    return f"{name!r} is not an embedded model; did you mean 'emoji-{name}'?{real}"


def available() -> tuple[str, ...]:
    """The embedded models whose weights are part of this installation."""
    present = Path(__file__).parent
    return tuple(name for name in (*NAMES, *FEW_STEP) if any((present / name).rglob("*.safetensors")))


def pipelines() -> tuple[str, ...]:
    """Those of them that generate."""
    return tuple(name for name in available() if name != "emoji-judge")


def base(name: str) -> str:
    """The pipeline that a LoRA for few steps is for; `name` itself otherwise."""
    return FEW_STEP.get(name, name)


def settings(name: str) -> dict[str, Any]:
    """What to call a pipeline with: size, steps, guidance.  `load("emoji-sdxl")(prompt, **settings("emoji-sdxl"))`."""
    stored: dict[str, Any] = json.loads((folder(name) / "settings.json").read_text())
    return stored


def load(name: str, dtype: Any = None) -> Any:
    """A ready pipeline (emoji-sdxl, emoji-flux) or a `CLIPModel` (emoji-judge), on the CPU and offline.

    emoji-sdxl-4step is emoji-sdxl with a LoRA for four steps, fused, and the scheduler that it was trained with. To
    load the LoRA into a pipeline of your own: `pipe.load_lora_weights(embedded.folder("emoji-sdxl-4step"))`.

    The weights are stored in half precision and loaded as `dtype`, float32 by default. The process keeps the memory
    it frees from then on (see :mod:`tomadiff.utils.memory`): images are generated up to a quarter faster so.
    """
    path = folder(name)
    _require_transformers()
    keep_memory()
    if name == "emoji-judge":
        return _load_judge(path, dtype)
    pipe = _load_few_step(name) if name in FEW_STEP else _load_pipeline(path)
    return pipe if dtype is None else pipe.to(dtype)


def _require_transformers() -> None:
    """Tokenizers are stored as transformers 5 writes them; patching pipelines of one's own needs no such version."""
    installed = version("transformers")
    if int(installed.partition(".")[0]) < 5:
        raise OldVersionError(
            f"The embedded models need transformers 5 or newer, and {installed} is installed: "
            "pip install -U transformers diffusers."
        )


def _load_pipeline(path: Path) -> Any:
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(path, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _load_few_step(name: str) -> Any:
    import diffusers

    if find_spec("peft") is None:
        raise MissingPeftError(f"{name} is a LoRA, and diffusers loads those with peft: pip install peft.")
    path, pipe = folder(name), _load_pipeline(folder(base(name)))
    part = "unet" if hasattr(pipe, "unet") else "transformer"
    model = getattr(pipe, part)
    model.load_lora_adapter(path, weight_name="pytorch_lora_weights.safetensors", prefix=part)
    model.fuse_lora()
    model.unload_lora()  # the fused weights stay, and layers are plain again
    scheduler = json.loads((path / "scheduler_config.json").read_text())
    pipe.scheduler = getattr(diffusers, scheduler["_class_name"]).from_config(scheduler)
    return pipe


def _load_judge(path: Path, dtype: Any) -> Any:
    import torch
    from transformers import CLIPModel

    judge: Any = CLIPModel.from_pretrained(path, local_files_only=True)
    return judge.to(dtype or torch.float32).eval()


def load_judge_processor() -> Any:
    """The judge's `CLIPProcessor`: images and captions to its inputs."""
    from transformers import CLIPProcessor

    _require_transformers()
    return CLIPProcessor.from_pretrained(folder("emoji-judge"), local_files_only=True)
