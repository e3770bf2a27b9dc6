"""Every method, preset and ablation by name: what benchmarks, evaluation and the command line iterate over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tomadiff.errors import require_choice
from tomadiff.methods.base import Method
from tomadiff.methods.bound import Bound
from tomadiff.methods.todo import ToDo
from tomadiff.methods.tofu import ToFu, ToMAToFu
from tomadiff.methods.toma import ToMA
from tomadiff.methods.tomesd import ToMeSD
from tomadiff.schedule import Schedule


@dataclass(frozen=True)
class Entry:
    """A method at some ratio, with its schedule.

    Attributes:
        title: what it is called in tables.
        make: the method at a ratio.
        schedule: how long its plans are kept; ``None`` means the method's own.
        group: ``"toma"`` (variants), ``"ablation"``, or ``"peer"``.
    """

    title: str
    make: Callable[[float], Method]
    group: str
    schedule: Schedule | None = None


_EVERYWHERE: dict[str, Any] = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True}

CATALOGUE: dict[str, Entry] = {
    "toma": Entry("ToMA (tile)", ToMA.tile, "toma"),
    "toma-stripe": Entry("ToMA stripe", ToMA.stripe, "toma"),
    "toma-whole": Entry("ToMA, whole-grid attention", ToMA.whole, "toma"),
    "toma-once": Entry("ToMA once per block", ToMA.once, "toma"),
    "toma-paper": Entry("ToMA as in the paper", ToMA.paper, "toma"),
    "toma-random": Entry("random destinations", lambda ratio: ToMA(ratio, selector="random"), "ablation"),
    "toma-strided": Entry("strided destinations", lambda ratio: ToMA(ratio, selector="strided"), "ablation"),
    "toma-kmeans": Entry("k-means destinations", lambda ratio: ToMA(ratio, selector="kmeans"), "ablation"),
    "toma-pinv": Entry("pseudo-inverse unmerge", lambda ratio: ToMA(ratio, unmerge="pseudo-inverse"), "ablation"),
    "toma-every-1": Entry("destinations every step", ToMA, "ablation", Schedule(1, 1)),
    "toma-every-5": Entry("destinations every 5 steps", ToMA, "ablation", Schedule(5, 5)),
    "toma-every-10": Entry("destinations and weights every 10 steps", ToMA, "ablation", Schedule(10, 10)),
    "tomesd": Entry("ToMeSD", ToMeSD, "peer"),
    "tomesd-all": Entry("ToMeSD, every op and level", lambda ratio: ToMeSD(ratio, **_EVERYWHERE), "peer"),
    "tofu": Entry("ToFu", ToFu, "peer"),
    "tofu-all": Entry("ToFu, every op and level", lambda ratio: ToFu(ratio, **_EVERYWHERE), "peer"),
    "toma-tofu": Entry("ToMA with ToFu", ToMAToFu, "peer"),
    "todo": Entry("ToDo (ratio is its own)", lambda _: ToDo(), "peer"),
    "bound": Entry("speed limit of merging", Bound, "peer"),
}


def named(name: str, ratio: float = 0.5) -> tuple[Method, Schedule]:
    """A method of the catalogue at a ratio, and its schedule; an unknown name raises with the known ones."""
    require_choice("method", name, tuple(CATALOGUE))
    entry = CATALOGUE[name]
    method = entry.make(ratio)
    return method, entry.schedule or method.schedule
