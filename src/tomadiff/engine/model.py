"""One patched model: its groups and sites, and what happens before each of its calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tomadiff.engine.components import take_off
from tomadiff.engine.discover import Discovery, for_family
from tomadiff.engine.driver import Driver, ImageEnd, OneAtATime, find_driver
from tomadiff.engine.forward import merged_block, merged_op, planning_block
from tomadiff.engine.group import ImageRng, PlanGroup, StepContext
from tomadiff.engine.hooks import (
    EndOfImage,
    RootHook,
    TokenReorder,
    allow_more_graphs,
    eject,
    inject,
    make_picklable,
    undo_picklable,
    unwrap,
)
from tomadiff.engine.layouts import LayoutReader
from tomadiff.engine.outer_hooks import attention_backend
from tomadiff.engine.parallel import own_part, processes
from tomadiff.engine.policy import Policy
from tomadiff.engine.pooled import pooled_op
from tomadiff.engine.report import NO_GAIN, ModelReport, describe
from tomadiff.engine.site import Site
from tomadiff.families.base import Family, ModelCall, TokenLayout
from tomadiff.families.registry import family_of
from tomadiff.merging.grid import Layout
from tomadiff.methods.base import Method
from tomadiff.steps.clock import Clock
from tomadiff.steps.schedule import Schedule

logger = logging.getLogger("tomadiff")

MARK = "_tomadiff_patch"  # attribute of a patched model that leads to its patch
_FUNCTIONS = {"block": merged_block, "plan": planning_block, "pooled": pooled_op}  # by kind of site; all else are ops


class PatchedModel:
    """One patched model.

    Attributes:
        given: the schedule that was given; ``schedule`` is in force, since a budget changes it.
        context: which step it is, for all groups.
        forecast: what goes around the calls of the same model, if anything does.
        by_region: whether tokens of this call come in the order of the plans' regions.
        warned: reasons that were warned about.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        method: Method,
        schedule: Schedule,
        policy: Policy | None = None,
        family: Family | None = None,
    ) -> None:
        self.name, self.outer, self.model = name, model, unwrap(model)
        self.method, self.given, self.schedule, self.policy = method, schedule, schedule, policy
        self.family = family or family_of(self.model)
        self.clock, self.context, self._threads = Clock(), StepContext(), OneAtATime()
        self._image_end = ImageEnd(self._end_image)
        self.forecast: Any = None
        self.groups: list[PlanGroup] = []
        self.sites: list[tuple[nn.Module, Site]] = []
        self.reorders: list[TokenReorder] = []
        self.token_layout: TokenLayout | None = None
        self._layouts = LayoutReader()
        self.skipped = self.calls = 0
        self.is_on = self.by_region = self.replaced = False
        self._last_report: ModelReport | None = None
        self.warned: set[str] = set()
        self._dtypes: dict[torch.dtype, Any] = {}  # the model's own, by that of its first weight

    # ------------------------------------------------------------------------------------------ on and off
    def put_on(self) -> None:
        """Inject every site; if anything goes wrong on the way, none."""
        self.schedule = self.given
        found = Discovery(self.model, self.family, self.method, self.schedule, self.context, self.warn_once)
        self.groups, self.sites, self.skipped = found.groups, found.sites, found.skipped
        self._depths = found.depths
        if self.policy is not None:
            self.policy.start(self)
        take_off(self.model, MARK, replaced=True)
        self.is_on, self.calls, self.context.rng = True, 0, ImageRng(self.method.seed)
        self.model.__dict__[MARK] = self
        allow_more_graphs(self.model)
        try:
            for module, site in self.sites:
                inject(module, self._function(site), site)
            if all(TokenReorder.fits(home) for home in found.homes):  # for all stacks, or for none
                homes = [(home, groups) for home, groups in found.homes.items() if home is not None]
                self.reorders = [TokenReorder(home, partial(_order_of, groups)) for home, groups in homes]
            self._follow()
        except BaseException:
            self.take_off()
            raise

    def _follow(self) -> None:
        """Have :meth:`before_call` called before every call, and know the end of an image."""
        self._root = RootHook(self.outer, self.before_call)
        self._end = EndOfImage(self.model, self._end_of_call)
        make_picklable(self.model)

    def _function(self, site: Site) -> Callable[..., Any]:
        """What to put in the place of a site's call."""
        return _FUNCTIONS.get(site.kind, merged_op)

    def take_off(self) -> None:
        """Eject everything and drop all plans."""
        if not self.is_on:
            return
        self.is_on = False
        for module, _ in self.sites:
            eject(module)
        for reorder in self.reorders:
            reorder.stop()
        for ending in ("_root", "_end"):
            if ending in self.__dict__:
                self.__dict__.pop(ending).stop()
        self.model.__dict__.pop(MARK, None)
        undo_picklable(self.model)
        for group in self.groups:
            group.plan, group.active = None, False
            group.records.clear()
        self._last_report = describe(self)
        self.groups, self.sites, self.reorders, self.token_layout, self._layouts = [], [], [], None, LayoutReader()
        if self.policy is not None:
            self.policy.stop()

    def packed(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """How to patch the model again where a pickle is opened."""
        policy = None if self.policy is None else self.policy.fresh()
        return _put_on, (self.name, self.method, self.given, policy)

    def change(self, method: Method, schedule: Schedule, policy: Policy | None) -> None:
        """Go on with other settings; if those cannot work, with the old ones."""
        old = self.method, self.given, self.policy
        self.take_off()
        try:
            self.method, self.given, self.policy = method, schedule, policy
            self.put_on()
        except BaseException:
            self.method, self.given, self.policy = old
            self.put_on()
            raise

    def use(self, ratio: float, schedule: Schedule) -> None:
        """Merge this image with another ratio and schedule."""
        self.method, self.schedule = replace(self.method, ratio=ratio), schedule
        for group in self.groups:
            group.method, group.schedule = replace(group.method, ratio=ratio), schedule

    # ------------------------------------------------------------------------------------------ before a call
    def before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the step and the grids off a call of the model, and tell the groups."""
        call, driver = ModelCall(self.model, args, kwargs, self.family), find_driver()
        self._threads.enter(driver)
        self.prepare(call, self._read_step(call, driver))

    def prepare(self, call: ModelCall, begins: bool) -> None:
        """Get ready for a call of the model, with which an image begins or goes on."""
        self.token_layout = self._layouts.read(self.family, self.model, call)
        needs_grad = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.model.parameters())
        trains = needs_grad or (torch.is_grad_enabled() and call.image.requires_grad)  # then all runs as if unpatched
        self.by_region = bool(self.reorders) and not trains and not self.family.order_matters(self.model, call)
        if self.policy is not None:
            self.policy.before_call(self, call, begins)
        takes_bias = bool(self.family.bias_backends) and self.attention_backend() in self.family.bias_backends
        for group in self.groups:
            group.needs_grad, group.proportional = needs_grad, takes_bias and group.method.is_proportional
            self._prepare_group(group, call)
        if self.policy is not None and self.policy.refuses_all():
            self.warn_once(NO_GAIN)
        self.context.passes = self.passes(call.image)
        self.calls += 1

    def _read_step(self, call: ModelCall, driver: Driver) -> bool:
        """Which step it is; whether an image begins with it."""
        if self.forecast is None:
            info = self.clock.step_info(call.timestep, driver.scheduler, driver.pipeline)
        else:
            info = self.forecast.info  # read already, and steps that were not computed count too
        begins = self.context.move(info)
        if begins:
            self._image_end.follow(driver)
        return begins

    def _prepare_group(self, group: PlanGroup, call: ModelCall) -> None:
        """Whether the group merges in this call, and on which grid."""
        layout, info, image = self.token_layout, self.context.info, call.image
        grid = None if layout is None else layout.grids.get(self._depths[group.name])
        group.whole = group.grid = grid
        group.layout = layout
        if grid is None:
            group.note_bypass(group.name, "the grid of the tokens could not be read from the call")
        merges = grid is not None and group.ratio() > 0
        if merges and self.policy is not None:
            merges = self.policy.admits(self, group, call)
        group.active = merges and self.schedule.merges_at(info.step, info.total)
        if group.active:
            parts = processes(self.model)
            if parts > 1 and grid is not None and layout is not None:
                group.grid = own_part(grid, group.method, parts, max(map(sum, layout.surroundings)))
            group.prepare(image.shape[0], self.dtype(image), image.device, self.by_region)

    def attention_backend(self) -> str:
        """The name of what attention runs on."""
        return attention_backend(self.model)

    def dtype(self, image: Tensor) -> torch.dtype:
        """What hidden states will be in: autocast has the last word, then the model's own."""
        kind = image.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
        first = next(self.model.parameters(), image).dtype
        if first not in self._dtypes:  # diffusers looks through all modules: too slow for every call
            self._dtypes = {first: getattr(self.model, "dtype", None)}
        own = self._dtypes[first]
        return own if isinstance(own, torch.dtype) and own.is_floating_point else image.dtype

    def passes(self, image: Tensor) -> int:
        """How many guidance passes the batch stacks: they start from equal images.

        Looked at only where destinations may be chosen anew, since comparing waits for the GPU; and not on the meta
        device, which has nothing to compare.
        """
        if self.method.share != "prompt" or self.family.share is not None or image.shape[0] == 1 or image.is_meta:
            return 1
        if not any(self._may_select(group, image.shape[0]) for group in self.groups):
            return self.context.passes
        for passes in (2, 3, 4):
            if image.shape[0] % passes == 0:
                parts = image.chunk(passes)
                if all(torch.equal(parts[0], part) for part in parts[1:]):
                    return passes
        return 1

    def _may_select(self, group: PlanGroup, batch: int) -> bool:
        info, record = self.context.info, group.records.get(0)
        if record is None or group.generation != info.generation:
            return True
        if record.key[:2] != (group.grid, batch) or record.key[-1] != group.ratio():
            return True
        return info.step - record.selected_at >= self.schedule.intervals[0]

    # ------------------------------------------------------------------------------------------ images
    def begin(self, steps: int | None = None) -> None:
        """A new image starts; see :meth:`Clock.begin`."""
        self.clock.begin(steps, find_driver().pipeline)

    def state(self, step: int) -> None:
        """The next calls belong to ``step``; see :meth:`Clock.state`."""
        self.clock.state(step, find_driver().pipeline)

    def _end_of_call(self) -> None:
        if self._threads.is_mine():  # or another thread ended another image
            self._image_end.end()

    def _end_image(self) -> None:
        self.clock.begin()

    # ------------------------------------------------------------------------------------------ report
    @property
    def settled(self) -> Method:
        """The method as it is in force, with what it leaves open as suits the model."""
        return for_family(self.method, self.family)

    def warn_once(self, reason: str) -> None:
        """One warning per reason and patch."""
        if reason not in self.warned:
            self.warned.add(reason)
            logger.warning("Some tokens of %s run unmerged: %s.", type(self.model).__name__, reason)

    def report(self) -> ModelReport:
        """What was merged so far; of a patch that was removed, what had been."""
        return describe(self) if self.is_on or self._last_report is None else self._last_report


def _put_on(model: nn.Module, name: str, *settings: Any) -> None:
    """Patch a model that comes out of a pickle as it was patched before."""
    PatchedModel(name, model, *settings).put_on()


def _order_of(groups: Sequence[PlanGroup]) -> Layout | None:
    """The order that tokens of a stack lie in: one for all of its groups, since they cut the same grid alike."""
    return next((group.order for group in groups if group.active), None)
