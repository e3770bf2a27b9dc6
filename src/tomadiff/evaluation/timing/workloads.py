"""What is timed: a whole image of a pipeline, or the steps of a bare denoiser put together to a window of ten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tomadiff.errors import require_choice
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.flops import WINDOW
from tomadiff.evaluation.timing.architectures import ARCHITECTURES, build, inputs
from tomadiff.patch import Patch
from tomadiff.steps.schedule import Due

_NAMES = {Due.SELECT: "selecting", Due.REWEIGH: "reweighing", Due.REUSE: "plain", Due.SKIP: "plain"}


@dataclass(frozen=True)
class Part:
    """One call to time, and how much it counts for in the whole."""

    name: str
    share: float
    call: Callable[[], Any]


class Workload(ABC):
    """Something to time, with a patch on it or without.

    Attributes:
        target: what a patch is put on.
        title: what it is.
        unit: what one measurement stands for.
    """

    target: Any
    title: str
    unit: str

    @abstractmethod
    def warm(self, patch: Patch | None) -> None:
        """Pay for start-up: allocations, caches, and the layout of a fresh patch."""

    @abstractmethod
    def parts(self, patch: Patch | None) -> list[Part]:
        """The calls of one measurement, in the order they have to run in."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it runs."""


class WholeImage(Workload):
    """One whole image, from text to pixels."""

    unit = "image"

    def __init__(self, pipe: Any, title: str, settings: Mapping[str, Any], prompt: str = "a fox") -> None:
        self.target, self.title, self.settings, self.prompt = pipe, title, dict(settings), prompt

    @property
    def device(self) -> torch.device:
        """Where the pipeline is."""
        return torch.device(self.target.device)

    def warm(self, patch: Patch | None) -> None:  # noqa: ARG002 - a pipeline tells its steps by itself
        """Two steps, so that solvers of second order run all of their code."""
        self._generate(num_inference_steps=2)

    def parts(self, patch: Patch | None) -> list[Part]:  # noqa: ARG002
        """The image."""
        return [Part("image", 1.0, self._generate)]

    def _generate(self, **changes: Any) -> Any:
        own = torch.Generator().manual_seed(0)
        return self.target(prompt=self.prompt, generator=own, **{**self.settings, **changes})


class Step(Workload):
    """The mean step of a window of ten: each kind of step (selecting, reweighing, plain) is one call of the model."""

    unit = "step"

    def __init__(self, model: Any, title: str, inputs: Mapping[str, Any]) -> None:
        self.target, self.title, self.inputs = model, title, inputs

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device(next(self.target.parameters()).device)

    def warm(self, patch: Patch | None) -> None:
        """One call."""
        self._call(patch, 0)

    def parts(self, patch: Patch | None) -> list[Part]:
        """A call for every kind of step that the patch's schedule has; without a patch all steps are alike."""
        if patch is None:
            return [Part("plain", 1.0, lambda: self._call(None, 0))]
        patch.begin(WINDOW)
        due = patch.schedule.dues(WINDOW)
        first = {kind: due.index(kind) for kind in due}
        counts = Counter(due)
        return [
            Part(_NAMES[kind], counts[kind] / WINDOW, lambda step=step: self._call(patch, step))  # type: ignore[misc]
            for kind, step in sorted(first.items(), key=lambda item: item[1])
        ]

    def _call(self, patch: Patch | None, step: int) -> Any:
        if patch is not None:
            patch.step(step)
        with torch.no_grad():
            return self.target(**self.inputs)


def architecture_steps(
    arch: str,
    sizes: Sequence[int | None],
    depth: int | None = None,
    batch: int = 1,
    device: str | None = None,
    dtype: str | None = None,
) -> Iterator[tuple[int, Step]]:
    """Steps of a published architecture with random weights, by the side of the image in pixels.

    Args:
        arch: name in :data:`tomadiff.evaluation.timing.architectures.ARCHITECTURES`.
        sizes: sides in pixels; ``None`` is what it was trained for.
        depth: keep at most this many transformer blocks of every stack.
        batch: samples per call.
        device: by default the GPU if there is one.
        dtype: by default bfloat16 on a GPU and float32 elsewhere.
    """
    require_choice("architecture", arch, tuple(ARCHITECTURES))
    place = models.device_of(device)
    kind = dtype_of(dtype, place)
    model = build(arch, place, depth, kind)
    cut = f", at most {depth} blocks per stack" if depth else ""
    for side in sizes:
        size = side or ARCHITECTURES[arch].size
        yield size, Step(model, f"{ARCHITECTURES[arch].title} at {size}²{cut}", inputs(arch, size, place, batch, kind))


def dtype_of(name: str | None, place: torch.device) -> torch.dtype:
    """The dtype of that name; by default bfloat16 on a GPU and float32 elsewhere."""
    if name is None:
        return torch.bfloat16 if place.type == "cuda" else torch.float32
    require_choice("dtype", name, tuple(models.DTYPES))
    return models.DTYPES[name]
