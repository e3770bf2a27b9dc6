"""``tomadiff inspect``: generate one image unmerged and merged, and find out on the way what merging does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from PIL import Image

from tomadiff.errors import TomaError
from tomadiff.evaluation.inspect.observe import HiddenStates, Watched, Watcher, spread
from tomadiff.evaluation.inspect.overlap import Overlap, overlap
from tomadiff.evaluation.inspect.plan_times import RUNS, plan_times
from tomadiff.evaluation.inspect.recolour import Clustered, clustered
from tomadiff.evaluation.report.report import title_of
from tomadiff.evaluation.runs.generate import Call, generate_image
from tomadiff.evaluation.runs.timer import Times
from tomadiff.methods.registry import named
from tomadiff.patch import Patch, apply

MOST_SLOTS = 6  # plans that are followed
BLOCKS, STEPS = 10, 6  # whose hidden states are shown
INTERVAL = 10
"""Steps for which the paper keeps destinations; its figure 4 compares them with the first step of such an interval."""


@dataclass(frozen=True)
class Level:
    """One group: what was seen of it, what its destinations have in common over steps, and what its plan costs."""

    watched: Watched
    overlap: Overlap
    times: dict[str, Times]
    sites: int

    @property
    def name(self) -> str:
        """Of the group: ``"level 0"``, or ``"block 3"`` for methods that plan for each block."""
        return self.watched.name

    @property
    def runs(self) -> int:
        """How often each time was taken."""
        return len(next(iter(self.times.values())).runs)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        plan, looks, steps = self.watched.plan, self.watched.looks, self.overlap
        return {
            "name": self.name,
            "grid": str(plan.grid),
            "tokens": plan.tokens,
            "kept": plan.kept,
            "sites": self.sites,
            "plan_bytes": plan.nbytes,
            "steps": list(steps.steps),
            "selected_at": [look.step for look in looks if look.selected],
            "coverage": [round(look.coverage, 6) for look in looks],
            "coverage_if_fresh": [round(look.fresh, 6) for look in looks],
            "overlap": {
                "chance": round(steps.chance, 6),
                "steps_apart": _rounded(steps.by_distance),
                "with_first_of_interval": _rounded(steps.since_first(INTERVAL)),
                "matrix": [_rounded(row) for row in steps.shares.tolist()],
            },
            "milliseconds": {
                name: {"median": 1000 * own.median, "least": 1000 * own.least} for name, own in self.times.items()
            },
            "runs": self.runs,
        }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


@dataclass(frozen=True)
class Inspection:
    """Everything that was found out.

    Attributes:
        method, ratio: what merged.
        settings: the method and its schedule in full.
        unmerged, merged: the image without and with it.
        levels: the groups that were followed.
        groups: how many there are.
        cells: hidden states of the unmerged model, clustered.
    """

    method: str
    ratio: float
    settings: str
    unmerged: Image.Image = field(repr=False)
    merged: Image.Image = field(repr=False)
    levels: tuple[Level, ...]
    groups: int
    cells: tuple[Clustered, ...]

    @property
    def title(self) -> str:
        """What merged, and how much."""
        return f"{title_of(self.method)}, {self.ratio:.0%} merged"

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        hidden = [
            {**asdict(cell.place), "step": cell.step, "neighbours_alike": cell.alike, "by_chance": cell.chance}
            for cell in self.cells
        ]
        about = {"method": self.method, "ratio": self.ratio, "settings": self.settings, "plans": self.groups}
        return {**about, "levels": [level.as_json() for level in self.levels], "hidden_states": hidden}


# ---------------------------------------------------------------------------------------------- look
def inspect(pipe: Any, prompt: str, seed: int, call: Call, method: str, ratio: float, runs: int = RUNS) -> Inspection:
    """Generate the image twice, without and with ``method`` at ``ratio``, and watch."""
    made, schedule = named(method, ratio)
    cells: list[Clustered] = []
    with apply(pipe, made, schedule=schedule, guard=False) as patch:  # first: what cannot work is told now
        names = _slot_names(patch)
    with HiddenStates(pipe, lambda *seen: cells.append(clustered(*seen)), BLOCKS, STEPS):
        unmerged = generate_image(pipe, prompt, seed, call)
    with apply(pipe, made, schedule=schedule, guard=False) as patch:
        watcher = Watcher(spread(names, MOST_SLOTS))
        patch.watch(watcher)
        merged = generate_image(pipe, prompt, seed, call)
        _require_merged(patch, watcher)
        sites = {level.name: level.sites for model in patch.report().models for level in model.levels}
        seen = [watcher.watched[name] for name in names if name in watcher.watched]
        levels = tuple(_level(own, sites[own.name], runs) for own in seen)
    return Inspection(method, made.ratio, f"{made!r}, {schedule!r}", unmerged, merged, levels, len(names), tuple(cells))


def _slot_names(patch: Patch) -> list[str]:
    """Every group of a patch."""
    return [level.name for model in patch.report().models for level in model.levels]


def _require_merged(patch: Patch, watcher: Watcher) -> None:
    """Raise with the reason where no plan was ever used."""
    if not watcher.watched:
        reasons = {model.idle for model in patch.report().models if model.idle}
        raise TomaError(f"There is nothing to inspect: {', '.join(sorted(reasons)) or 'nothing merged'}.")


def _level(watched: Watched, sites: int, runs: int) -> Level:
    looks = watched.looks
    steps = overlap([look.step for look in looks], [look.destinations for look in looks], watched.grid.tokens)
    return Level(watched, steps, plan_times(watched, runs), sites)
