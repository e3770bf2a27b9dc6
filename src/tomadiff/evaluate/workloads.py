"""What is timed: a whole picture of a pipeline, or the steps of a bare denoiser put together to a window of ten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tomadiff.evaluate.count import WINDOW, due_at
from tomadiff.patch import Patch
from tomadiff.schedule import Due

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


class Picture(Workload):
    """One whole picture, from text to pixels."""

    unit = "picture"

    def __init__(self, pipe: Any, title: str, settings: Mapping[str, Any], prompt: str = "a fox") -> None:
        self.target, self.title, self.settings, self.prompt = pipe, title, dict(settings), prompt

    @property
    def device(self) -> torch.device:
        """Where the pipeline is."""
        return torch.device(self.target.device)

    def warm(self, patch: Patch | None) -> None:  # noqa: ARG002 - a pipeline tells its steps by itself
        """Two steps, so that solvers of second order run all of their code."""
        self._draw(num_inference_steps=2)

    def parts(self, patch: Patch | None) -> list[Part]:  # noqa: ARG002
        """The picture."""
        return [Part("picture", 1.0, self._draw)]

    def _draw(self, **changes: Any) -> Any:
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
        due = due_at(patch.schedule, WINDOW)
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
