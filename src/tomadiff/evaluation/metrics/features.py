"""Networks that look at images, all with one small interface: a batch of images in, ``(N, D)`` features out.

``distances.py`` turns features into numbers; this file only makes them. :mod:`tomadiff.evaluation.metrics.networks` has
the networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tomadiff.errors import TomaError

T = TypeVar("T")


class NetworkUnavailable(TomaError, RuntimeError):  # noqa: N818 - says what is the case, as the report prints it
    """A network cannot be had here; the message says why, and what would help."""


@runtime_checkable
class Network(Protocol):
    """Looks at images."""

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Features ``(N, D)`` of one batch of RGB images of any size."""
        ...


@runtime_checkable
class TextNetwork(Network, Protocol):
    """Looks at images and reads prompts, into the same space."""

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """Features ``(N, D)`` of one batch of prompts."""
        ...


@runtime_checkable
class PairNetwork(Protocol):
    """Compares images itself, such as LPIPS: its distance is part of the network."""

    def distances(self, images: Tensor, others: Tensor) -> Tensor:
        """Distances ``(B,)`` of images ``(B, 3, H, W)`` in [0, 1]."""
        ...


AnyNetwork = Network | PairNetwork
Opener = Callable[[], AnyNetwork]


# ---------------------------------------------------------------------------------------------- use
def image_features(network: Network, images: Iterable[Image.Image], batch: int = 16) -> Tensor:
    """Features ``(N, D)`` on the CPU, a batch at a time; ``images`` may load themselves as they are asked for."""
    with torch.inference_mode():
        return torch.cat([network.images(part).float().cpu() for part in batches(images, batch)])


def text_features(network: TextNetwork, prompts: Iterable[str], batch: int = 64) -> Tensor:
    """Features ``(N, D)`` on the CPU, a batch at a time."""
    with torch.inference_mode():
        return torch.cat([network.texts(part).float().cpu() for part in batches(prompts, batch)])


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """``items`` in lists of ``size``, the last one shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def to_pixels(images: Sequence[Image.Image]) -> Tensor:
    """RGB images of one size as ``(N, 3, H, W)`` in [0, 1]."""
    return to_bytes(images).float() / 255


def to_bytes(images: Sequence[Image.Image]) -> Tensor:
    """RGB images of one size as ``(N, 3, H, W)`` of whole numbers from 0 to 255."""
    return torch.stack([torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) for image in images])
