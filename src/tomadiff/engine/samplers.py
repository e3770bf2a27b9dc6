"""What schedulers say of themselves: whether they add noise, and how much of each output goes into the image."""

from __future__ import annotations

import copy
import math
import re
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

    Samplers add outputs up, with weights of their own. So a copy of the scheduler runs on as many numbers as there are
    steps: each is given one output at a step of its own, and what comes out in the end is the weight of that step.
    ``None`` where there are no such weights: samplers that add noise or call the model twice a step, and other loops.
    """
    if scheduler is None or adds_noise(scheduler) or not hasattr(scheduler, "step"):
        return None
    runner = _on_cpu(copy.deepcopy(scheduler))
    vars(runner)["is_scale_input_called"] = True  # some warn otherwise
    times = runner.timesteps
    if len(set(times.tolist())) < len(times):
        return None
    impulses = _IMPULSE * torch.eye(len(times), dtype=torch.float64)
    image = torch.zeros(len(times), 1, 1, 1, dtype=torch.float64)
    try:
        for step in range(first, len(times)):
            image = runner.step(impulses[step].view_as(image), times[step], image, return_dict=False)[0]
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return None  # it asks for more than an output, or for another form of it
    sizes = (image.double().flatten() / _IMPULSE).tolist()
    alike = all(map(math.isfinite, sizes)) and len({math.copysign(1, size) for size in sizes[first:]}) == 1
    return tuple(sizes) if alike else None


def _on_cpu(scheduler: Any) -> Any:
    """Reading its numbers waits for no device any more."""
    for name, value in vars(scheduler).items():
        if isinstance(value, Tensor):
            setattr(scheduler, name, value.cpu())
    return scheduler
