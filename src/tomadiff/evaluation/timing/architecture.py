"""What is known of a published denoiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Noise = Callable[..., Tensor]


@dataclass(frozen=True)
class Architecture:
    """One published denoiser.

    Attributes:
        title: what people call it.
        model: name of its class in diffusers.
        config: what the class is built with.
        depths: settings that count transformer blocks, which a reduced depth limits.
        size: side in pixels of the images it was trained for.
        step: sides must be multiples of this many pixels.
        inputs: makes the arguments of one call from ``noise(*shape)``, the side in latents, and the batch.
    """

    title: str
    model: str
    config: dict[str, Any] = field(repr=False)
    depths: tuple[str, ...] = field(repr=False)
    size: int
    step: int
    inputs: Callable[[Noise, int, int], dict[str, Any]] = field(repr=False)
