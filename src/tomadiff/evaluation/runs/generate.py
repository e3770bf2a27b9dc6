"""Generate images with a pipeline as it is: the same image for the same seed, whatever was generated before."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from tomadiff.errors import SettingError, UnsupportedModelError, require_count
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.timer import now

Call = Mapping[str, Any]
"""What a pipeline is called with beside prompt and generator: ``{"num_inference_steps": 20, "height": 512, …}``."""


def call_of(
    model: str,
    pipe: Any,
    *,
    steps: int | None = None,
    size: tuple[int, int] | None = None,
    guidance: float | None = None,
) -> dict[str, Any]:
    """What to call a pipeline with: the given settings, else the model's own, else the pipeline's defaults."""
    if steps is not None:
        require_count("steps", steps)
    if size is not None:
        _require_size(pipe, size)
    given = {"num_inference_steps": steps, "guidance_scale": guidance}
    given |= {"width": size[0], "height": size[1]} if size else {}
    call = models.settings(model) | {name: value for name, value in given.items() if value is not None}
    known = inspect.signature(pipe.__call__).parameters
    unknown = [name for name in call if name not in known]
    if unknown:
        raise SettingError(f"{type(pipe).__name__} takes no {unknown[0]}; leave that setting out.")
    for name in ("num_inference_steps", "guidance_scale"):  # written down, since defaults change with versions
        if name in known:
            call.setdefault(name, known[name].default)
    return call


def _require_size(pipe: Any, size: tuple[int, int]) -> None:
    """Raise for pixels that do not make whole latents, which pipelines refuse or silently round."""
    patch = 2 if getattr(pipe, "transformer", None) is not None else 1
    least = math.lcm(8, patch * int(getattr(pipe, "vae_scale_factor", 8)))
    if any(side % least for side in size):
        below = "x".join(str(max(least, side - side % least)) for side in size)
        raise SettingError(
            f"size={size[0]}x{size[1]} is not possible with {type(pipe).__name__}: give multiples of {least}, such as "
            f"{below}."
        )


def generate_image(pipe: Any, prompt: Prompt | str, seed: int, call: Call | None = None) -> Image.Image:
    """One image."""
    return generate_batch(pipe, [as_prompt(prompt)], [seed], call or {})[0][0]


def generate_batch(
    pipe: Any, prompts: Sequence[Prompt], seeds: Sequence[int], call: Call
) -> tuple[list[Image.Image], float]:
    """A batch of images and the seconds it took."""
    arguments = arguments_of(pipe, prompts, seeds, call)
    start = now(pipe.device)
    result = pipe(**arguments)
    seconds = now(pipe.device) - start
    if not hasattr(result, "images"):
        raise UnsupportedModelError(f"{type(pipe).__name__} does not generate single images; evaluation needs those.")
    return list(result.images), seconds


def warm_up(pipe: Any, prompts: Sequence[Prompt], seeds: Sequence[int], call: Call) -> None:
    """The first image of a process is slow (caches, kernels): generate one that nobody times."""
    steps = min(2, call.get("num_inference_steps", 2))
    generate_batch(pipe, prompts, seeds, {**call, "num_inference_steps": steps})


def arguments_of(pipe: Any, prompts: Sequence[Prompt], seeds: Sequence[int], call: Call) -> dict[str, Any]:
    """All that a pipeline is called with to generate a batch."""
    # On the CPU, so that a seed means the same noise on every device.
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    return {**call, **_texts(pipe, prompts), "output_type": "pil", "generator": generators}


def _texts(pipe: Any, prompts: Sequence[Prompt]) -> dict[str, list[str]]:
    texts = {"prompt": [prompt.text for prompt in prompts]}
    if any(prompt.negative for prompt in prompts):
        if "negative_prompt" not in inspect.signature(pipe.__call__).parameters:
            raise SettingError(f"{type(pipe).__name__} takes no negative prompts; leave them out.")
        texts["negative_prompt"] = [prompt.negative for prompt in prompts]
    return texts


def as_prompt(prompt: Prompt | str) -> Prompt:
    """A text alone is a prompt too."""
    return Prompt(prompt) if isinstance(prompt, str) else prompt
