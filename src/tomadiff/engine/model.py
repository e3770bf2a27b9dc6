"""One patched model: its slots and sites, and what happens before each of its calls."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff import kernels
from tomadiff.cost import Hardware, Trace
from tomadiff.cost.budget import Budget, Choice, choose, ratios_of, rungs_of
from tomadiff.cost.budget_search import Ledger, on_meta, shapes_in, twin_of
from tomadiff.cost.calibration import require_calibration
from tomadiff.cost.guard import Guard, Scale
from tomadiff.engine.discover import Survey, settled
from tomadiff.engine.driver import Driver, OneAtATime, find_driver
from tomadiff.engine.hooks import (
    EndOfPicture,
    Gates,
    Watch,
    eject,
    inject,
    let_travel,
    make_room_for_graphs,
    stop_travel,
    unwrap,
)
from tomadiff.engine.parallel import own_part, processes
from tomadiff.engine.planner import Dice, Moment
from tomadiff.engine.pooled import pooled_op
from tomadiff.engine.report import LevelReport, ModelReport
from tomadiff.engine.reuse import reusing_block, reusing_op
from tomadiff.engine.sites import Passage, Site, merged_block, merged_op, planning_block
from tomadiff.engine.slots import Slot
from tomadiff.errors import SettingError, TomaError
from tomadiff.families.base import Call, Family, Scene
from tomadiff.families.registry import family_of
from tomadiff.methods.base import Method
from tomadiff.steps.clock import Clock
from tomadiff.steps.schedule import Schedule

logger = logging.getLogger("tomadiff")

MARK = "_tomadiff_patch"  # attribute of a patched model that leads to its patch
_FUNCTIONS = {"block": merged_block, "plan": planning_block, "pooled": pooled_op}  # by kind of site; all else are ops
_REUSING: dict[Callable[..., Any], Callable[..., Any]] = {merged_op: reusing_op, merged_block: reusing_block}
_NO_GAIN = "merging would not be faster here (guard=False merges all the same)"


def merges_nothing(method: Method, schedule: Schedule) -> bool:
    """Whether the settings alone leave every token where it is."""
    return method.ratio == 0 and not schedule.varies and schedule.reuse_every == 1


class PatchedModel:
    """One patched model: its slots and sites, and what happens before each of its calls."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        method: Method,
        schedule: Schedule,
        guarded: bool,
        budget: Budget | None = None,
    ) -> None:
        self.name, self.outer, self.model = name, model, unwrap(model)
        self.method, self.given, self.guarded, self.budget = method, schedule, guarded, budget
        self.schedule = schedule  # in force: a budget changes the one that was given
        self.family: Family = family_of(self.model)
        self.clock, self.moment, self._threads = Clock(), Moment(), OneAtATime()
        self._loop: weakref.ref[Any] | None = None  # of a modular pipeline
        self.forecast: Any = None  # what goes around the calls of the same model, if anything does
        self.slots: list[Slot] = []
        self.sites: list[tuple[nn.Module, Site]] = []
        self.guard: Guard | None = None
        self.homes: dict[nn.Module | None, list[Slot]] = {}
        self.gates: list[Gates] = []
        self.depths: dict[str, int] = {}
        self.scene: Scene | None = None
        self.choice: Choice | None = None  # that meets the budget, for the picture being drawn
        self._choices: dict[Any, Choice] = {}
        self.skipped = self.calls = 0
        self.is_on = False
        self._last_report: ModelReport | None = None
        self._warned: set[str] = set()
        self._dtypes: dict[torch.dtype, Any] = {}  # the model's own, by that of its first weight

    # ------------------------------------------------------------------------------------------ on and off
    def put_on(self) -> None:
        """Inject every site; if anything goes wrong on the way, none."""
        if self.guarded or (self.budget is not None and self.budget.speedup is not None):
            require_calibration()  # a broken one is told now, not at the first call
        self.schedule = self.given
        found = Survey(self.model, self.family, self.method, self.schedule, self.moment, self.warn_once)
        self.slots, self.sites, self.homes = found.slots, found.sites, found.homes
        self.depths, self.skipped = found.depths, found.skipped
        self.guard = Guard(self.family, self.sites) if self.guarded else None
        old = self.model.__dict__.get(MARK)
        if old is not None:
            old.take_off()
        self.is_on, self.calls, self.moment.dice = True, 0, Dice(self.method.seed)
        self.choice, self._choices = None, {}
        self.model.__dict__[MARK] = self
        make_room_for_graphs(self.model)
        try:
            for module, site in self.sites:
                inject(module, self._function(site), site)
            self._open_gates()
            self._watch = Watch(self.outer, self.before_call)
            self._end = EndOfPicture(self.model, self._end_picture)
            let_travel(self.model)
        except BaseException:
            self.take_off()
            raise

    def _function(self, site: Site) -> Callable[..., Any]:
        """What to put in the place of a site's call."""
        usual = _FUNCTIONS.get(site.kind, merged_op)
        return usual if self.schedule.reuse_every == 1 else _REUSING.get(usual, usual)

    def _open_gates(self) -> None:
        """Arrange tokens where they enter and leave a stack, if that can be done for all stacks."""
        if all(Gates.fit(home) for home in self.homes):
            passages = [(home, Passage(slots)) for home, slots in self.homes.items() if home is not None]
            for home, passage in passages:
                self.gates.append(Gates(home, passage.enter, passage.leave))

    def take_off(self) -> None:
        """Eject everything and drop all plans."""
        if not self.is_on:
            return
        self.is_on = False
        for module, _ in self.sites:
            eject(module)
        for gates in self.gates:
            gates.stop()
        for ending in ("_watch", "_end"):
            if ending in self.__dict__:
                self.__dict__.pop(ending).stop()
        self.model.__dict__.pop(MARK, None)
        stop_travel(self.model)
        for slot in self.slots:
            slot.plan, slot.active = None, False
            slot.planner.kept.clear()
            self._forget_answers(slot)
        self._last_report = self._described()
        self.slots, self.sites, self.homes, self.gates, self.scene = [], [], {}, [], None
        self.guard = None

    def packed(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """How to patch the model again where a pickle is opened."""
        return _put_on, (self.name, self.method, self.given, self.guarded, self.budget)

    def change(self, method: Method, schedule: Schedule, guarded: bool, budget: Budget | None) -> None:
        """Go on with other settings; if those cannot work, with the old ones."""
        old = self.method, self.given, self.guarded, self.budget
        self.take_off()
        try:
            self.method, self.given, self.guarded, self.budget = method, schedule, guarded, budget
            self.put_on()
        except BaseException:
            self.method, self.given, self.guarded, self.budget = old
            self.put_on()
            raise

    # ------------------------------------------------------------------------------------------ before a call
    def before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the step and the grids off a call of the model, and tell the slots."""
        call, driver = Call(self.model, args, kwargs), find_driver()
        self._threads.enter(driver)
        if self.forecast is None:
            tick = self.clock.tick(call["timestep"], driver.scheduler, driver.pipeline)
        else:
            tick = self.forecast.tick  # read already, and steps that were not computed count too
        begins = self.moment.move(tick)
        if begins:
            self._await_end(driver)
            self._forget()
        self.scene = self.family.scene(self.model, call)
        trains = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.model.parameters())
        learns = trains or (torch.is_grad_enabled() and call.image.requires_grad)  # then all runs as if unpatched
        arranged = bool(self.gates) and not learns and not self.family.order_matters(self.model, call)
        if self.budget is not None and (begins or self.choice is None):
            self._adopt(self._chosen(self.budget, call, arranged))
        for slot in self.slots:
            slot.trains = trains
            self._tell(slot, call, arranged, learns)
        if self._refused():
            self.warn_once(_NO_GAIN)
        self.moment.passes = self._passes(call.image)
        self.calls += 1

    @property
    def settled(self) -> Method:
        """The method as it is in force, with what it leaves open as suits the model."""
        return settled(self.method, self.family)

    def begin(self, steps: int | None = None) -> None:
        """A new image starts; see :meth:`Clock.begin`."""
        self.clock.begin(steps, find_driver().pipeline)

    def state(self, step: int) -> None:
        """The next calls belong to ``step``; see :meth:`Clock.state`."""
        self.clock.state(step, find_driver().pipeline)

    def _await_end(self, driver: Driver) -> None:
        """Modular pipelines do not say that an image is done; the state of their loop is dropped then."""
        self._loop = None
        if driver.loop_state is not None:
            own = weakref.WeakMethod(self._end_image)
            self._loop = weakref.ref(driver.loop_state, lambda _: (own() or _do_nothing)())

    def _end_picture(self) -> None:
        if self._threads.is_mine():  # or another thread ended another image
            self._end_image()

    def _end_image(self) -> None:
        self._loop = None
        self.clock.begin()
        self._forget()

    def _forget(self) -> None:
        """Drop what was kept of the last picture: every picture is drawn as if it were the first."""
        for _, site in self.sites:
            site.last.clear()

    def _forget_answers(self, slot: Slot) -> None:
        for _, site in self.sites:
            if site.slot is slot:
                site.last.clear()

    def _refused(self) -> bool:
        """Whether the guard left nothing to merge."""
        verdicts = () if self.guard is None else self.guard.verdicts.values()
        return bool(verdicts) and not any(verdict.admits for verdict in verdicts)

    def _tell(self, slot: Slot, call: Call, arranged: bool, learns: bool) -> None:
        grid = None if self.scene is None else self.scene.grids.get(self.depths[slot.name])
        tick, image = self.moment.tick, call.image
        planner = slot.planner
        if grid != planner.whole:
            self._forget_answers(slot)
        planner.whole = planner.grid = grid
        slot.tail = 0 if self.scene is None else self.scene.tail
        slot.turn, slot.reuses = tick.turn, not learns and self.schedule.reuses_at(tick.step, tick.total)
        if grid is None:
            slot.note_bypass(slot.name, "the grid of the tokens could not be read from the call")
        merges = grid is not None and planner.ratio() > 0
        if merges and self.guard is not None:
            scale = Scale.of(image, call["encoder_hidden_states"], self._dtype(image), arranged)
            merges = scale is None or self.guard.admits(slot, scale)
        slot.active = merges and self.schedule.merges_at(tick.step, tick.total)
        slot.proportional = planner.method.is_proportional and self.family.takes_bias(self.model)
        if slot.active:
            parts = processes(self.model)
            if parts > 1 and grid is not None:
                planner.grid = own_part(grid, planner.method, parts, slot.tail)
            slot.prepare(image.shape[0], self._dtype(image), image.device, arranged)

    def _dtype(self, image: Tensor) -> torch.dtype:
        """What hidden states will be in: autocast has the last word, then the model's own."""
        kind = image.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
        first = next(self.model.parameters(), image).dtype
        if first not in self._dtypes:  # diffusers looks through all modules: too slow for every call
            self._dtypes = {first: getattr(self.model, "dtype", None)}
        own = self._dtypes[first]
        return own if isinstance(own, torch.dtype) and own.is_floating_point else image.dtype

    def _passes(self, image: Tensor) -> int:
        """How many guidance passes the batch stacks: they start from equal pictures.

        Looked at only where destinations may be chosen anew, since comparing waits for the GPU; and not on the meta
        device, which has nothing to compare.
        """
        if self.method.share != "prompt" or self.family.share is not None or image.shape[0] == 1 or image.is_meta:
            return 1
        if not any(self._may_select(slot, image.shape[0]) for slot in self.slots):
            return self.moment.passes
        for passes in (2, 3, 4):
            if image.shape[0] % passes == 0:
                parts = image.chunk(passes)
                if all(torch.equal(parts[0], part) for part in parts[1:]):
                    return passes
        return 1

    def _may_select(self, slot: Slot, batch: int) -> bool:
        tick, planner, kept = self.moment.tick, slot.planner, slot.planner.kept.get(0)
        if kept is None or planner.generation != tick.generation:
            return True
        if kept.key[:2] != (planner.grid, batch) or kept.key[-1] != planner.ratio():
            return True
        return tick.step - kept.selected_at >= self.schedule.intervals[0]

    def warn_once(self, reason: str) -> None:
        """One warning per reason and patch."""
        if reason not in self._warned:
            self._warned.add(reason)
            logger.warning("Some tokens of %s run unmerged: %s.", type(self.model).__name__, reason)

    # ------------------------------------------------------------------------------------------ budget
    def _adopt(self, choice: Choice) -> None:
        """Merge this picture as chosen."""
        self.choice = choice
        self.method = replace(self.method, ratio=choice.ratio)
        self.schedule = choice.rung.on(replace(self.given, start=choice.start))
        for slot in self.slots:
            planner = slot.planner
            planner.method, planner.schedule = replace(planner.method, ratio=choice.ratio), self.schedule

    def _chosen(self, budget: Budget, call: Call, arranged: bool) -> Choice:
        """What meets the budget for pictures of this size and number of steps; found once, and kept."""
        tick, dtype, passes = self.moment.tick, self._dtype(call.image), self._passes(call.image)
        steps = tick.total if tick.total is not None and tick.step < tick.total else None
        place = call.image.device, torch.get_num_threads()
        key = (shapes_in(call.arguments), dtype, place, passes, arranged, tick.step, steps)
        if key not in self._choices:
            machine = None if budget.speedup is None else Hardware.of(call.image.device, dtype)
            measure = _flops_of if machine is None else machine.seconds
            fused = kernels.assumed(kernels.fused("auto", call.image.device, dtype, 1))
            with torch.inference_mode(False), torch.no_grad(), fused:
                ledger = self._ledger(budget, call, arranged, passes)
                shares, rungs = partial(ledger.shares, measure=measure), rungs_of(ratios_of(self.method), self._levels)
                choice = choose(budget, shares, self.given, steps, tick.step, rungs)
            self._choices[key] = replace(choice, machine="" if machine is None else str(machine))
        return self._choices[key]

    @property
    def _levels(self) -> int:
        """Grids whose ratios a budget may choose: who sets some of them has chosen."""
        return 1 if self.given.ratio_at_level else len({slot.planner.level for slot in self.slots})

    def _ledger(self, budget: Budget, call: Call, arranged: bool, passes: int) -> Ledger:
        """What calls like this one cost, counted on a twin."""
        dtype = self._dtype(call.image)
        arguments = on_meta(call.arguments, dtype)
        try:
            twin = self._twin(arguments, dtype)
            twin.moment.passes = passes
            scale = Scale.of(call.image, call["encoder_hidden_states"], dtype, arranged)
            guard = Guard(self.family, twin.sites) if self.guarded and budget.speedup is not None else None
            ledger = Ledger(twin.sites, twin.slots, call.image.shape[0], dtype, arranged, passes, guard, scale)
            ledger.open(lambda: twin.model.forward(**arguments))  # not through the watch, which would merge
        except TomaError:
            raise
        except Exception as problem:  # whatever keeps other people's code from running on shapes alone
            kind, reason = type(self.model).__name__, str(problem).partition("\n")[0]
            raise SettingError(
                f"{budget} cannot be met: what {kind} computes could not be counted on the meta device ({reason}). "
                "Give ratio=… instead."
            ) from problem
        return ledger

    def _twin(self, arguments: dict[str, Any], dtype: torch.dtype) -> PatchedModel:
        """The model on the meta device, patched alike, and told of a call; it merges nothing yet."""
        always, nothing = replace(self.given, start=0), replace(self.method, ratio=0.0)
        twin = PatchedModel(self.name, twin_of(self.model, dtype), nothing, always, guarded=False)
        twin.family = replace(self.family, scene=lambda *_: self.scene)  # which may be read off real tensors
        twin._warned = self._warned  # what it would say is ours to say
        twin.put_on()
        twin.state(0)
        twin.before_call((), arguments)
        return twin

    # ------------------------------------------------------------------------------------------ report
    def report(self) -> ModelReport:
        """What was merged so far; of a patch that was removed, what had been."""
        return self._described() if self.is_on or self._last_report is None else self._last_report

    def _described(self) -> ModelReport:
        levels = tuple(self._level_report(slot) for slot in self.slots)
        kind, family = type(self.model).__name__, self.family
        why, budget, guard = self._why_idle(), self._budget_text(), "" if self.guard is None else self.guard.describe()
        return ModelReport(self.name, kind, family.title, levels, self.skipped, family.note, why, budget, guard)

    def _budget_text(self) -> str:
        if self.budget is None:
            return ""
        return f"{self.budget}: settings are chosen at the first call" if self.choice is None else str(self.choice)

    def _why_idle(self) -> str:
        if merges_nothing(self.method, self.schedule):
            return "the ratio is 0"
        if not self.calls:
            return "the model has not run yet"
        if self._refused():
            return _NO_GAIN
        if any(slot.bypassed for slot in self.slots):
            return "every call ran unmerged"
        return "no step so far was one to merge at"

    def _level_report(self, slot: Slot) -> LevelReport:
        verdict = None if self.guard is None else self.guard.verdicts.get(slot.name)
        left_out, expected = (0, None) if verdict is None else (verdict.left_out, verdict.speedup)
        return LevelReport.of(slot, [site for _, site in self.sites if site.slot is slot], left_out, expected)


def _put_on(model: nn.Module, name: str, *settings: Any) -> None:
    """Patch a model that comes out of a pickle as it was patched before."""
    PatchedModel(name, model, *settings).put_on()


def _do_nothing() -> None:
    """For a patch that is gone."""


def _flops_of(trace: Trace) -> float:
    return trace.flops
