"""How much of each step's output goes into the image, as ComfyUI's samplers tell when they run on a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tomadiff.engine.samplers import sizes_of


class Outputs:
    """What samplers are given in place of a model, which gives outputs that are known beforehand."""

    def __init__(self, patcher: Any, outputs: Sequence[Tensor]) -> None:
        self.inner_model = SimpleNamespace(inner_model=patcher.model, model_patcher=patcher)
        self._sampling, self._outputs = patcher.get_model_object("model_sampling"), iter(outputs)

    def __call__(self, x: Tensor, sigma: Tensor, **_: Any) -> Tensor:
        """The denoised image, as ComfyUI makes it of an output."""
        denoised: Tensor = self._sampling.calculate_denoised(sigma, self._next(), x)
        return denoised

    def _next(self) -> Tensor:
        try:
            return next(self._outputs)
        except StopIteration:
            raise LookupError("The sampler calls the model more often than once a step.") from None


def step_sizes(sampler: Any, sigmas: Tensor, patcher: Any) -> tuple[float, ...] | None:
    """See :func:`tomadiff.engine.samplers.sizes_of`; none of samplers of other nodes, which may do anything."""
    function: Any = getattr(sampler, "sampler_function", None)
    options = getattr(sampler, "extra_options", {})
    if not getattr(function, "__module__", "").startswith("comfy.") or any(map(callable, options.values())):
        return None
    levels = sigmas.to("cpu", torch.float32, copy=True)  # UniPC writes into them, and knows no float64

    def sampled(image: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        model = Outputs(patcher, [output.float() for output in outputs])
        given = {"seed": 0, "model_options": {}, "denoise_mask": None}
        with torch.random.fork_rng(devices=[]):
            made: Tensor = function(model, image.float(), levels, given, callback=None, disable=True, **options)
        return made

    return sizes_of(sampled, len(levels) - 1)
