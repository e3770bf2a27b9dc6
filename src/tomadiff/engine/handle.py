"""What a handle on patched models can do whatever its settings: watch them, tell them the step, take everything off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Self

from torch import Tensor

from tomadiff.engine.controlnet import Forecasts
from tomadiff.engine.forecast import ForecastModel
from tomadiff.engine.group import PlanGroup
from tomadiff.engine.model import PatchedModel
from tomadiff.merging.plan import Plan
from tomadiff.steps.run import Pattern
from tomadiff.utils.guesses import Guided


class Handle(Guided):
    """Base of :class:`~tomadiff.Patch`: merging by model, and the forecasts around it."""

    _models: list[PatchedModel]
    _forecasts: Forecasts

    calls: ClassVar = {
        **dict.fromkeys(("disable", "off", "unpatch", "restore", "undo", "stop"), "patch.remove()"),
        **dict.fromkeys(("enable", "on", "start"), "tomadiff.apply(pipe, …), which puts a patch on again"),
        **dict.fromkeys(("ratio", "levels"), "patch.method.ratio to read it, patch.set(ratio=0.25) to change it"),
        **dict.fromkeys(("speedup", "flops"), "patch.choices to read what was chosen, patch.set(speedup=1.4)"),
    }
    changes: ClassVar = {
        "": "patch.set({name}={value!r})",
        "method": "tomadiff.apply(pipe, {value!r}), which replaces this patch",
        **dict.fromkeys(("active", "enabled"), "patch.remove(), or tomadiff.apply(pipe, …)"),
    }

    @property
    def active(self) -> bool:
        """Whether the patch is on."""
        return any(one.is_on for one in self._parts)

    @property
    def _state(self) -> str:
        """In a word or two, as the end of a sentence."""
        if self.active:
            return "put on"
        return "replaced by a later one" if any(one.replaced for one in self._parts) else "removed"

    @property
    def _parts(self) -> list[PatchedModel | ForecastModel]:
        """The outer ones first."""
        return [*self._forecasts.parts, *self._models]

    def remove(self) -> None:
        """Restore the model exactly; calling it again does nothing."""
        self._forecasts.take_off()
        for patched in self._models:
            patched.take_off()

    def begin(self, steps: int | None = None) -> None:
        """Say that a new image starts, and how many steps it takes: for loops of one's own.

        It holds until the next ``begin``, or until a pipeline drives the model, which knows its own steps.
        """
        for one in self._parts:
            one.begin(steps)

    def step(self, step: int) -> None:
        """Say which step the next calls belong to: for loops of one's own; it holds as long as ``begin`` does."""
        for one in self._parts:
            one.state(step)

    def plans(self) -> dict[str, Plan]:
        """The plan last used by each group, by name (``"level 0"``); empty before the first call and after removal."""
        groups = [group for patched in self._models for group in patched.groups]
        return {group.name: group.last for group in groups if group.last is not None}

    def watch(self, function: Callable[[str, PlanGroup, Tensor], None]) -> None:
        """Call ``function(name, group, tokens)`` whenever a call of the model asks a group for its plan.

        ``group.last`` is the plan in use and ``group.context.info`` the step; ``tokens`` ``(B, N, C)`` are what it
        would be renewed from. Lasts until the patch is changed or removed.
        """
        for patched in self._models:
            for group in patched.groups:
                group.watcher = partial(function, group.name)

    @property
    def pattern(self) -> Pattern:
        """Which steps of the last image were computed; ``Forecast(steps=patch.pattern.computed)`` replays it."""
        return self._forecasts.pattern

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
