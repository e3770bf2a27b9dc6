"""Flow matching: a straight line from picture to noise; the model learns its velocity."""

from collections.abc import Callable
from itertools import pairwise

import torch

DROP = 0.1  # share of captions left out, so that guidance has an unconditional prediction
SHIFT = 3.0  # more weight on high noise, where the global shape is decided; samplers use the same shift


def noise_levels(count: int, generator: torch.Generator) -> torch.Tensor:
    """Logit-normal sigmas (count,) in (0, 1), shifted towards noise.

    One from each of `count` equally likely ranges: every batch sees high and low noise, so gradients wobble less.
    """
    share = (torch.arange(count) + torch.rand(count, generator=generator)) / count
    sigma = torch.sigmoid(torch.special.ndtri(share.clamp(1e-4, 1 - 1e-4)))
    return SHIFT * sigma / (1 + (SHIFT - 1) * sigma)


def add_noise(
    latents: torch.Tensor, sigma: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy latents and the velocity to predict, both of the shape of `latents`; sigma (batch,)."""
    noise = torch.randn(latents.shape, generator=generator)
    level = sigma.view(-1, *[1] * (latents.ndim - 1))
    return (1 - level) * latents + level * noise, noise - latents


def keep_captions(count: int, generator: torch.Generator) -> torch.Tensor:
    """(count,) ones, and zeros where the caption is dropped."""
    return (torch.rand(count, generator=generator) >= DROP).float()


@torch.no_grad()
def euler(velocity: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], noise: torch.Tensor, steps: int = 20):
    """Follow velocity(noisy, sigma (batch,)) from pure noise to a sample of the same shape."""
    sigmas = torch.linspace(1, 0, steps + 1)
    sigmas = SHIFT * sigmas / (1 + (SHIFT - 1) * sigmas)
    sample = noise
    for now, then in pairwise(sigmas):
        sample = sample + (then - now) * velocity(sample, now.expand(len(sample)))
    return sample
