"""What schedulers say of themselves: whether they add noise, and how much of each output goes into the image."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_NOISY = re.compile(
    "ancestral|sde|lcm|tcd|ddpm|stochastic|sasolver", re.IGNORECASE
)  # in names of samplers that add noise
_IMPULSE = 1e-3  # small, so that nothing is clipped


def adds_noise(scheduler: Any) -> bool:
    """Whether a scheduler adds noise at every step, as far as its name and settings say."""
    if scheduler is None:
        return False
    config = getattr(scheduler, "config", None) or {}
    told = str(config.get("algorithm_type", "")), type(scheduler).__name__
    return bool(config.get("stochastic_sampling")) or any(_NOISY.search(one) for one in told)


def step_sizes(scheduler: Any, first: int = 0) -> tuple[float, ...] | None:
    """How much of each step's output goes into the image, from the step ``first`` on; 0 before it.

    A copy of the scheduler tells, see :func:`sizes_of`. ``None`` too where it looks at outputs twice, and of other
    loops.
    """
    if scheduler is None or adds_noise(scheduler) or not hasattr(scheduler, "step"):
        return None
    runner = _on_cpu(copy.deepcopy(scheduler))
    vars(runner)["is_scale_input_called"] = True  # some warn otherwise
    times = runner.timesteps
    if len(set(times.tolist())) < len(times):
        return None

    def sampled(image: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        for step in range(first, len(times)):
            image = runner.step(outputs[step], times[step], image, return_dict=False)[0]
        return image

    return sizes_of(sampled, len(times), first)


def sizes_of(
    sampled: Callable[[Tensor, Sequence[Tensor]], Tensor], count: int, first: int = 0
) -> tuple[float, ...] | None:
    """How much of each of ``count`` outputs goes into the image that a sampler makes of them.

    Samplers add outputs up, with weights of their own. So one runs on as many numbers as there are steps, and one more:
    each is given one output at a step of its own, and what comes out in the end is the weight of that step. The last
    number is given none, so what comes out of it is noise. ``None`` where there are no such weights: samplers that add
    noise, or call the model twice a step.

    Args:
        sampled: ``(image, outputs)`` → the image in the end; ``image`` and each of the outputs are
            ``(count + 1, 1, 1, 1)``, and the image is of zeros.
        count: of steps.
        first: the first step that runs.
    """
    impulses = _IMPULSE * torch.eye(count, count + 1, dtype=torch.float64)
    outputs = impulses[..., None, None, None].unbind()
    try:
        image = sampled(torch.zeros(count + 1, 1, 1, 1, dtype=torch.float64), outputs)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError):
        return None  # it asks for more than an output, or for another form of it
    *sizes, noise = (image.double().flatten() / _IMPULSE).tolist()
    alike = all(map(math.isfinite, sizes)) and len({math.copysign(1, size) for size in sizes[first:]}) == 1
    return tuple(sizes) if alike and noise == 0 else None


def _on_cpu(scheduler: Any) -> Any:
    """Reading its numbers waits for no device any more."""
    for name, value in vars(scheduler).items():
        if isinstance(value, Tensor):
            setattr(scheduler, name, value.cpu())
    return scheduler
