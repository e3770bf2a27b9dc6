"""What a patched model asks before it merges: the engine's side of :mod:`tomadiff.cost.policy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tomadiff.engine.group import PlanGroup
from tomadiff.families.base import ModelCall

if TYPE_CHECKING:
    from tomadiff.engine.model import PatchedModel


class Policy(Protocol):
    """What decides whether and how much merges, beside the settings; see :class:`tomadiff.cost.policy.CostPolicy`."""

    def fresh(self) -> Policy:
        """With the same settings, for another model."""

    def start(self, patched: PatchedModel) -> None:
        """A model is being patched."""

    def stop(self) -> None:
        """The patch comes off."""

    def before_call(self, patched: PatchedModel, call: ModelCall, begins: bool) -> None:
        """A call of the model begins, perhaps an image."""

    def admits(self, patched: PatchedModel, group: PlanGroup, call: ModelCall) -> bool:
        """Whether a group merges in this call."""

    def refuses_all(self) -> bool:
        """Whether nothing is left to merge."""

    def describe_budget(self) -> str:
        """What was chosen to meet a budget."""

    def describe_guard(self) -> str:
        """What the guard decided."""

    def verdict(self, group: PlanGroup) -> tuple[int, float | None]:
        """How many sites of a group stay unmerged, and the speed-up that is expected of it."""
