"""The policy that a patched model asks: where merging is worth its time, and which ratio meets a budget."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from tomadiff import kernels
from tomadiff.cost.budget import Budget, Choice, RatioChoice, Shares, choices_of, choose, ratios_of
from tomadiff.cost.budget_search import BudgetSearch, meta_copy_of, on_meta, shapes_in
from tomadiff.cost.calibration import require_calibration
from tomadiff.cost.guard import Guard, Scale
from tomadiff.cost.hardware import Hardware
from tomadiff.cost.trace import Trace
from tomadiff.engine.group import PlanGroup
from tomadiff.engine.model import PatchedModel
from tomadiff.errors import SettingError, TomaError
from tomadiff.families.base import ModelCall


class CostPolicy:
    """Decides for one patched model, from shapes and the constants of a named machine.

    Attributes:
        guarded: whether calls stay unmerged where merging would take longer than it saves.
        budget: what an image may cost, if somebody says; it chooses the ratio.
        guard: of the model that is patched now.
        choice: that meets the budget, for the image being generated.
    """

    def __init__(self, guarded: bool, budget: Budget | None = None) -> None:
        self.guarded, self.budget = guarded, budget
        self.guard: Guard | None = None
        self.choice: Choice | None = None
        self._choices: dict[Any, Choice] = {}

    def fresh(self) -> CostPolicy:
        """With the same settings, for another model."""
        return CostPolicy(self.guarded, self.budget)

    def start(self, patched: PatchedModel) -> None:
        """A model is being patched; a broken calibration is told now, not at the first call."""
        if self.guarded or (self.budget is not None and self.budget.speedup is not None):
            require_calibration()
        self.guard = Guard(patched.family, patched.sites) if self.guarded else None
        self.choice, self._choices = None, {}

    def stop(self) -> None:
        """The patch comes off."""
        self.guard = None

    def before_call(self, patched: PatchedModel, call: ModelCall, begins: bool) -> None:
        """Choose a ratio that meets the budget, for every image anew."""
        if self.budget is None or not (begins or self.choice is None):
            return
        choice = self.choice = self._chosen(self.budget, patched, call)
        patched.use(choice.ratio, choice.ratio_choice.on(replace(patched.given, start=choice.start)))

    def admits(self, patched: PatchedModel, group: PlanGroup, call: ModelCall) -> bool:
        """Whether a group merges in a call of this size; tells its sites whether they do."""
        if self.guard is None:
            return True
        scale = Scale.of(call.image, call["encoder_hidden_states"], patched.dtype(call.image), patched.by_region)
        return scale is None or self.guard.admits(group, scale)

    # ------------------------------------------------------------------------------------------ report
    def refuses_all(self) -> bool:
        """Whether the guard left nothing to merge."""
        verdicts = () if self.guard is None else self.guard.verdicts.values()
        return bool(verdicts) and not any(verdict.admits for verdict in verdicts)

    def describe_budget(self) -> str:
        """What was chosen to meet the budget; empty without one."""
        if self.budget is None:
            return ""
        return f"{self.budget}: settings are chosen at the first call" if self.choice is None else str(self.choice)

    def describe_guard(self) -> str:
        """What the guard decided; empty without one."""
        return "" if self.guard is None else self.guard.describe()

    def verdict(self, group: PlanGroup) -> tuple[int, float | None]:
        """How many sites of a group stay unmerged, and the speed-up that is expected of it."""
        verdict = None if self.guard is None else self.guard.verdicts.get(group.name)
        return (0, None) if verdict is None else (verdict.left_out, verdict.speedup)

    # ------------------------------------------------------------------------------------------ budget
    def _chosen(self, budget: Budget, patched: PatchedModel, call: ModelCall) -> Choice:
        """What meets the budget for images of this size and number of steps; found once, and kept."""
        info, dtype, passes = patched.context.info, patched.dtype(call.image), patched.passes(call.image)
        steps = info.total if info.total is not None and info.step < info.total else None
        place = call.image.device, torch.get_num_threads()
        pattern = None if patched.forecast is None else patched.forecast.capped
        key = (shapes_in(call.arguments), dtype, place, passes, patched.by_region, info.step, steps, pattern)
        if key not in self._choices:
            machine = None if budget.speedup is None else Hardware.of(call.image.device, dtype)
            fused = kernels.assumed(kernels.fused("auto", call.image.device, dtype, 1))
            with torch.inference_mode(False), torch.no_grad(), fused:
                search = cache(partial(self._search, budget, patched, call, passes))  # patterns alone need none
                measure = _flops_of if machine is None else machine.seconds

                def shares(ratio_choice: RatioChoice) -> Shares:
                    return search().shares(ratio_choice, measure)

                possible = choices_of(ratios_of(patched.method), _free_levels(patched))
                choice = choose(budget, shares, patched.given, steps, info.step, possible, computed=pattern)
            self._choices[key] = replace(choice, machine="" if machine is None else str(machine))
        return self._choices[key]

    def _search(self, budget: Budget, patched: PatchedModel, call: ModelCall, passes: int) -> BudgetSearch:
        """What calls like this one cost, counted on a copy without weights."""
        image, dtype = call.image, patched.dtype(call.image)
        arguments = on_meta(call.arguments, dtype)
        try:
            copy = _meta_copy(patched, arguments, dtype)
            copy.context.passes = passes
            scale = Scale.of(image, call["encoder_hidden_states"], dtype, patched.by_region)
            guard = Guard(patched.family, copy.sites) if self.guarded else None
            search = BudgetSearch(
                copy.sites, copy.groups, image.shape[0], dtype, patched.by_region, passes, guard, scale
            )
            search.open(lambda: copy.model.forward(**arguments))  # not through the root hook, which would merge
        except TomaError:
            raise
        except Exception as problem:  # whatever keeps other people's code from running on shapes alone
            kind, reason = type(patched.model).__name__, str(problem).partition("\n")[0]
            raise SettingError(
                f"{budget} cannot be met: what {kind} computes could not be counted on the meta device ({reason}). "
                "Give ratio=… instead."
            ) from problem
        return search


def _free_levels(patched: PatchedModel) -> int:
    """Grids whose ratios a budget may choose: who sets some of them has chosen."""
    return 1 if patched.given.ratio_at_level else len({group.level for group in patched.groups})


def _meta_copy(patched: PatchedModel, arguments: dict[str, Any], dtype: torch.dtype) -> PatchedModel:
    """The model on the meta device, patched alike, and told of a call; it merges nothing yet."""
    always, nothing = replace(patched.given, start=0), replace(patched.method, ratio=0.0)
    copy = PatchedModel(patched.name, meta_copy_of(patched.model, dtype), nothing, always)
    layout = patched.token_layout  # may have been read off real tensors
    copy.family = replace(patched.family, token_layout=lambda *_: layout, reads=())
    copy.warned = patched.warned  # one warning is enough
    copy.put_on()
    copy.state(0)
    copy.before_call((), arguments)
    return copy


def _flops_of(trace: Trace) -> float:
    return trace.flops
