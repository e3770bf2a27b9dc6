"""What the injected functions do: merge, run the untouched layer, unmerge.

A :class:`Site` is one wrapped call. Sites that share a plan share a :class:`Slot`. Compiled code sees only a slot's
plan (tensors of fixed shapes), two flags and a counter-free handle; everything that changes from step to step lives
in the slot's :class:`Planner`, which runs outside of graphs: directly in eager mode, as an opaque operator inside
compiled code.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tomadiff.errors import PatchError
from tomadiff.grid import Grid
from tomadiff.inject import DATA
from tomadiff.methods.base import Method
from tomadiff.plan import Plan
from tomadiff.schedule import Due, Schedule, Tick

OpKind = Literal["attention", "cross_attention", "feed_forward"]


class Dice:
    """Random numbers of a patch's own: the same ones for every picture, and the sampler's are left alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def restart(self) -> None:
        """Begin again, for the next picture."""
        self.generator.manual_seed(self.seed)

    def __deepcopy__(self, _: dict[int, Any]) -> Dice:
        return Dice(self.seed)


@dataclass
class Moment:
    """What the root of a model was last called with; shared by all slots of one model.

    Attributes:
        tick: which picture, step and pass.
        passes: guidance passes stacked in the batch.
        tail: tokens behind the grid that stay as they are (reference images).
        dice: where methods take random numbers from.
    """

    tick: Tick = field(default_factory=lambda: Tick(0, 0, 0))
    passes: int = 1
    tail: int = 0
    dice: Dice = field(default_factory=lambda: Dice(0))

    def move(self, tick: Tick) -> None:
        """Go on to another call."""
        if tick.generation != self.tick.generation:
            self.dice.restart()
        self.tick = tick


@dataclass
class Kept:
    """A plan and when it was made, for one pass of the step."""

    plan: Plan
    key: tuple[Any, ...]
    selected_at: int
    weighed_at: int


_LAST_TURN = 7  # later calls of a step share a plan: a loop at one timestep must not pile up plans


class Planner:
    """Makes and keeps the plans of one slot."""

    def __init__(self, method: Method, schedule: Schedule, moment: Moment, level: int, depth: float = 1.0) -> None:
        self.method, self.schedule, self.moment, self.level, self.depth = method, schedule, moment, level, depth
        self.grid: Grid | None = None
        self.kept: dict[int, Kept] = {}
        self.generation = -1
        self.plans_made = 0
        self.weights_made = 0
        self.last: Plan | None = None

    def ratio(self) -> float:
        """Share of tokens to remove now."""
        tick = self.moment.tick
        return self.schedule.ratio(self.method.ratio, tick.step, self.level, tick.total)

    def current(self, tokens: Tensor) -> Plan:
        """The plan for this call; ``tokens`` ``(B, N + tail, C)`` are looked at only if something is due."""
        assert self.grid is not None
        tick = self.moment.tick
        if tick.generation != self.generation:
            self.kept.clear()
            self.generation = tick.generation
        key = (self.grid, tokens.shape[0], tokens.dtype, tokens.device, self.ratio())
        image = tokens[:, : self.grid.tokens].detach()
        turn = min(tick.turn, _LAST_TURN)
        self.kept[turn] = self._renewed(self.kept.get(turn), self.kept.get(0), key, image)
        self.last = self.kept[turn].plan
        return self.last

    def _renewed(self, own: Kept | None, first: Kept | None, key: tuple[Any, ...], tokens: Tensor) -> Kept:
        """Later passes of a step take the destinations of its first, and weigh them by their own tokens."""
        tick = self.moment.tick
        if tick.turn > 0 and first is not None and first.key == key:
            if own is None or own.key != key or own.selected_at != first.selected_at:
                return self._reweighed(first, tokens)
        elif own is None or own.key != key:
            return self._selected(key, tokens)
        assert own is not None
        due = self.schedule.due(tick.step, own.selected_at, own.weighed_at, tick.total)
        if due is Due.SELECT and tick.turn == 0:
            return self._selected(key, tokens)
        return self._reweighed(own, tokens) if due in (Due.REWEIGH, Due.SELECT) else own

    def _selected(self, key: tuple[Any, ...], tokens: Tensor) -> Kept:
        assert self.grid is not None
        self.plans_made += 1
        passes = self.moment.passes if tokens.shape[0] % self.moment.passes == 0 else 1
        dice = self.moment.dice.generator
        plan = self.method.plan(tokens, self.grid, ratio=self.ratio(), passes=passes, generator=dice, depth=self.depth)
        step = self.moment.tick.step
        return Kept(plan, key, step, step)

    def _reweighed(self, kept: Kept, tokens: Tensor) -> Kept:
        self.weights_made += 1
        plan = self.method.reweigh(kept.plan, tokens, depth=self.depth)
        return Kept(plan, kept.key, kept.selected_at, self.moment.tick.step)


class Slot:
    """Where sites share a plan.

    Attributes:
        plan: the plan in use, renewed in place, so that compiled code keeps its graphs.
        active: whether tokens merge at this step.
        tail: tokens behind the grid that stay as they are.
        batch: samples in the call.
        trains: whether gradients of the model's weights are wanted.
        planner: makes plans; never touched by compiled code.
    """

    def __init__(self, name: str, planner: Planner) -> None:
        self.name = name
        self.plan: Plan | None = None
        self.active = False
        self.tail = self.batch = 0
        self.trains = False
        self.planner = planner
        self.bypassed: dict[str, int] = {}
        self._renewed_for: Tick | None = None
        self.warn: Callable[[str], None] = _say_nothing
        self.handle = torch.tensor(next(_NUMBERS))
        _SLOTS[int(self.handle)] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot:
        """A copied model gets slots of its own, with handles of their own."""
        twin = Slot(self.name, copy.deepcopy(self.planner, memo))
        memo[id(self)] = twin
        twin.active, twin.tail, twin.trains = self.active, self.tail, self.trains
        twin.warn = copy.deepcopy(self.warn, memo)  # the voice of the copy's own patch
        return twin

    def prepare(self, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        """Have a plan of the right shapes at hand before compiled code asks for one."""
        grid, ratio = self.planner.grid, self.planner.ratio()
        assert grid is not None
        key, self.batch = (grid, batch, dtype, device, ratio), batch
        if self.__dict__.get("_prepared") != key:
            blank = torch.zeros(batch, grid.tokens, 1, dtype=dtype, device=device)
            self.plan = self.planner.method.plan(blank, grid, ratio=ratio, depth=self.planner.depth)
            self.plan.renew([tensor.clone() for tensor in self.plan.state])  # no views: compiled code guards on them
            self._prepared = key

    def renew(self, tokens: Tensor) -> None:
        """Bring the plan up to date from ``tokens`` ``(B, N + tail, C)``, if anything is due."""
        if torch.compiler.is_compiling():
            assert self.plan is not None
            self.plan.renew(renewed_state(tokens, self.handle, self.plan.state))
            return
        current = self.planner.current(tokens)
        self._renewed_for = self.planner.moment.tick
        if self.plan is None or not self.plan.fits(current):
            self.plan = copy.copy(current)
        else:
            self.plan.renew(current.state)

    def is_stale(self) -> bool:
        """Whether nobody has looked yet, in this call of the model, if the plan is due."""
        return self.plan is None or self._renewed_for is not self.planner.moment.tick

    def note_bypass(self, where: str, reason: str) -> None:
        """Count a call that ran unmerged, and say so the first time."""
        key = f"{where}: {reason}"
        self.bypassed[key] = self.bypassed.get(key, 0) + 1
        self.warn(reason)

    def expects(self, tokens: Tensor) -> bool:
        """Whether these are all tokens ``(B, N + tail, C)`` of the call: a plan made from some would not fit others."""
        grid = self.planner.grid
        return grid is not None and tuple(tokens.shape[:-1]) == (self.batch, grid.tokens + self.tail)

    def merge(self, tokens: Tensor) -> Tensor:
        """``(B, N + tail, C)`` → ``(B, K + tail, C)``."""
        assert self.plan is not None
        if not self.tail:
            return self.plan.merge(tokens)
        image = self.plan.tokens
        return torch.cat([self.plan.merge(tokens[:, :image]), tokens[:, image:]], dim=1)

    def unmerge(self, merged: Tensor) -> Tensor:
        """``(B, K + tail, C)`` → ``(B, N + tail, C)``."""
        assert self.plan is not None
        if not self.tail:
            return self.plan.unmerge(merged)
        image = self.plan.kept
        return torch.cat([self.plan.unmerge(merged[:, :image]), merged[:, image:]], dim=1)


_NUMBERS = itertools.count()
_SLOTS: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()


def _say_nothing(_: str) -> None:
    """Until a patch lends its voice."""


@torch.library.custom_op("tomadiff::renewed_state", mutates_args=())
def renewed_state(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - for its fake
    """The state of a slot's current plan, for compiled code: one opaque node, so that no step number enters a graph.

    ``state`` tells the shapes; ``handle`` is a tensor, because a number would be compiled in.
    """
    return [tensor.clone() for tensor in _SLOTS[int(handle)].planner.current(tokens).state]


@renewed_state.register_fake
def _(tokens: Tensor, handle: Tensor, state: list[Tensor]) -> list[Tensor]:  # noqa: ARG001 - as the real one
    return [torch.empty_like(tensor) for tensor in state]


# ---------------------------------------------------------------------------------------------- sites
@dataclass(frozen=True)
class Rotary:
    """Where a call takes its rotary tables from, and which of their rows belong to image tokens.

    Attributes:
        argument: name of the keyword argument.
        position: its place behind ``hidden_states`` where it is given by position, else ``None``.
        axis: the tables' token axis; 0 means they have no batch axis, so a batch shares its destinations.
        tables: ``"all"`` of them hold image rows, or only the ``"first"`` does.
        text_first: whether rows of text tokens come before those of the image.
    """

    argument: str
    position: int | None = None
    axis: int = 0
    tables: Literal["all", "first"] = "all"
    text_first: bool = False


def _not_injected(*_: Any) -> Any:
    raise PatchError("This site was never injected.")


@dataclass
class Site:
    """One wrapped call.

    Attributes:
        slot: whose plan it uses.
        name: where it is in the model.
        kind: what it computes.
        leads: whether it is the first of its slot to run, and so renews the plan.
        rotary: its rotary tables, if it has any.
        outputs: which items of a tuple it returns are image-length.
        joint: whether it is attention over text and image.
        inner: set by :func:`tomadiff.inject.inject`.
    """

    slot: Slot
    name: str
    kind: OpKind | Literal["block", "plan", "pooled"]
    leads: bool = False
    rotary: Rotary | None = None
    outputs: tuple[int, ...] = (0,)
    joint: bool = False
    inner: Callable[..., Any] = _not_injected
    restored_by_deletion: bool = False


def merged_op(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``unmerge(op(merge(x)))`` for attention and feed-forward; text and other inputs pass as they are."""
    site: Site = getattr(self, DATA)
    if not ready_to_merge(site, hidden_states, args, kwargs):
        return site.inner(self, hidden_states, *args, **kwargs)
    args, kwargs = _with_picked_rows(site, hidden_states, args, kwargs)
    merged = site.slot.merge(hidden_states)
    return _map_outputs(site, site.inner(self, merged, *args, **kwargs), site.slot.unmerge)


def merged_block(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``x + unmerge(block(m) − m)`` with ``m = merge(x)``: the residual stream keeps its full length."""
    site: Site = getattr(self, DATA)
    if not ready_to_merge(site, hidden_states, args, kwargs):
        return site.inner(self, hidden_states, *args, **kwargs)
    args, kwargs = _with_picked_rows(site, hidden_states, args, kwargs)
    merged = site.slot.merge(hidden_states)
    result = site.inner(self, merged, *args, **kwargs)
    return _map_outputs(site, result, lambda image: hidden_states + site.slot.unmerge(image - merged))


def planning_block(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Renew the plan from the block's own input, and run the block as it is: the ops inside merge."""
    site: Site = getattr(self, DATA)
    ready_to_merge(site, hidden_states, args, kwargs)
    return site.inner(self, hidden_states, *args, **kwargs)


def _map_outputs(site: Site, result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(result, Tensor):
        return change(result)
    return tuple(change(item) if place in site.outputs else item for place, item in enumerate(result))


# ---------------------------------------------------------------------------------------------- when not to merge
def ready_to_merge(site: Site, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call merges, with its plan brought up to date; if not, the reason is noted."""
    slot = site.slot
    if not slot.active:
        return False
    reason = _unsafe(site, tokens, args, kwargs)
    if reason is None:
        _renew_if_due(site, tokens)
        reason = _misfit(slot, tokens)
    if reason is not None and not torch.compiler.is_compiling():
        slot.note_bypass(site.name, reason)
    return reason is None


def _renew_if_due(site: Site, tokens: Tensor) -> None:
    slot = site.slot
    if torch.compiler.is_compiling():
        due = site.leads and _misfit(slot, tokens) is None
    else:  # the leading site may be skipped by a cache, or be unsafe: whoever comes first in a call plans
        due = (site.leads or slot.is_stale()) and slot.expects(tokens)
    if due:
        slot.renew(_as_first_op_sees(site, tokens))


def _as_first_op_sees(site: Site, tokens: Tensor) -> Tensor:
    """Plans are made from normalised tokens; a whole block is given them before its first norm."""
    return tokens if site.kind != "block" else torch.nn.functional.layer_norm(tokens, tokens.shape[-1:])


def _unsafe(site: Site, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why merged tokens would give wrong results here, if they would."""
    if torch.is_grad_enabled() and (site.slot.trains or tokens.requires_grad):
        return "gradients are enabled (run inside torch.no_grad() to merge)"
    if site.kind in ("attention", "block", "pooled") and kwargs.get("attention_mask") is not None:
        return "a self-attention mask is given"
    nested = kwargs.get("cross_attention_kwargs") or kwargs.get("joint_attention_kwargs") or {}
    if kwargs.get("ip_adapter_masks") is not None or nested.get("ip_adapter_masks") is not None:
        return "ip_adapter_masks are given"
    if site.kind == "block" and any(_is_per_token(value, tokens) for value in (*args, *kwargs.values())):
        return "every token has a timestep of its own"
    if site.kind == "block" and kwargs.get("modulate_index") is not None:
        return "every token has a modulation of its own"
    return None


def _is_per_token(value: Any, tokens: Tensor) -> bool:
    """Modulation ``(B, N, 6, C)`` as video models use it when single frames are given."""
    return isinstance(value, Tensor) and value.dim() == 4 and value.shape[1] == tokens.shape[1]


def _misfit(slot: Slot, tokens: Tensor) -> str | None:
    """Why the plan does not serve these tokens, if it does not (chunked feed-forward, unknown token layouts)."""
    plan = slot.plan
    if plan is None or tokens.dim() != 3 or tokens.shape[1] != plan.tokens + slot.tail:
        return "its tokens are not the ones of the grid (chunked feed-forward or an unknown layout)"
    if tokens.shape[0] % plan.batch:
        return "its batch is not the one that was planned for (chunked feed-forward)"
    return None


# ---------------------------------------------------------------------------------------------- rotary tables
def _with_picked_rows(
    site: Site, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with rotary rows picked by destination."""
    rotary = site.rotary
    if rotary is None:
        return args, kwargs
    if kwargs.get(rotary.argument) is not None:
        return args, {**kwargs, rotary.argument: picked_rows(site.slot, rotary, tokens, kwargs[rotary.argument])}
    place = rotary.position
    if place is not None and len(args) > place and args[place] is not None:
        return (*args[:place], picked_rows(site.slot, rotary, tokens, args[place]), *args[place + 1 :]), kwargs
    return args, kwargs


def picked_rows(slot: Slot, rotary: Rotary, tokens: Tensor, tables: Any) -> Any:
    """Rotary tables for the merged image ``tokens`` ``(B, N + tail, C)``; rows of other tokens stay."""
    if isinstance(tables, Tensor):
        return _picked_table(slot, rotary, tokens, tables)
    chosen = len(tables) if rotary.tables == "all" else 1
    return tuple(
        _picked_table(slot, rotary, tokens, table) if place < chosen else table for place, table in enumerate(tables)
    )


def _picked_table(slot: Slot, rotary: Rotary, tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of text and tail stay; those of the grid are picked. Models may make their tables on the CPU."""
    plan, axis, table = slot.plan, rotary.axis, table.to(tokens.device)
    assert plan is not None
    before = table.shape[axis] - tokens.shape[1] if rotary.text_first else 0
    sizes = [before, plan.tokens, table.shape[axis] - before - plan.tokens]
    text, image, rest = table.split(sizes, dim=axis)
    picked = plan.pick(image, dim=axis)
    if picked.shape[0] != text.shape[0] and axis > 0:
        text, rest = (part.expand(picked.shape[0], *part.shape[1:]) for part in (text, rest))
    return torch.cat([text, picked, rest], dim=axis) if before or sizes[2] else picked
