"""Every method, preset and ablation by name: what benchmarks, evaluation and the command line iterate over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tomadiff.errors import SettingError, did_you_mean
from tomadiff.merging.grid import Stripes, Tiles, Whole
from tomadiff.methods.base import Method
from tomadiff.methods.bound import Bound
from tomadiff.methods.todo import ToDo
from tomadiff.methods.tofu import ToFu
from tomadiff.methods.toma import ToMA
from tomadiff.methods.tomesd import ToMeSD
from tomadiff.steps.schedule import Schedule

FULL = "full"
"""The model as it is, by the name it has in files and on the command line."""

RECOMMENDED = "recommended"
"""What ``apply(pipe)`` does, by the name it has in every table: forecasts, and no merging."""


@dataclass(frozen=True)
class Entry:
    """A method at some ratio, with its schedule.

    Attributes:
        title: what it is called in tables.
        make: the method at a ratio.
        schedule: how long its plans are kept; ``None`` means the method's own.
        group: ``"toma"`` (variants), ``"ablation"``, ``"baseline"``, or ``"paper"``.
    """

    title: str
    make: Callable[[float], Method]
    group: str
    schedule: Schedule | None = None


_PAPER_SCHEDULE = Schedule(destinations_every=10, weights_every=5)
_EVERYWHERE: dict[str, Any] = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True}

CATALOGUE: dict[str, Entry] = {
    "toma": Entry("ToMA", ToMA, "toma"),
    "toma-paper": Entry("ToMA as in the paper", ToMA.paper, "toma"),
    "toma-stripe": Entry("ToMA stripe", ToMA.stripe, "toma"),
    "toma-whole": Entry("ToMA, whole-grid attention", ToMA.whole, "toma"),
    "toma-stripe-whole": Entry("ToMA stripe, whole-grid attention", ToMA.stripe_whole, "toma"),
    "toma-once": Entry("ToMA once per block", ToMA.once, "toma"),
    "toma-random": Entry("random destinations", partial(ToMA.tile, selector="random"), "ablation"),
    "toma-strided": Entry("strided destinations", partial(ToMA.tile, selector="strided"), "ablation"),
    "toma-kmeans": Entry("k-means destinations", partial(ToMA.tile, selector="kmeans"), "ablation"),
    "toma-pinv": Entry("pseudo-inverse unmerge", partial(ToMA.tile, unmerge="pseudo-inverse"), "ablation"),
    "toma-every-1": Entry("destinations every step", ToMA.paper, "ablation", Schedule(1, 1)),
    "toma-every-5": Entry("destinations every 5 steps", ToMA.paper, "ablation", Schedule(5, 5)),
    "toma-every-10": Entry("destinations and weights every 10 steps", ToMA.paper, "ablation", Schedule(10, 10)),
    "tomesd": Entry("ToMeSD", ToMeSD, "baseline"),
    "tomesd-all": Entry("ToMeSD, every op and level", lambda ratio: ToMeSD(ratio, **_EVERYWHERE), "baseline"),
    "tofu": Entry("ToFu", ToFu, "baseline"),
    "tofu-all": Entry("ToFu, every op and level", lambda ratio: ToFu(ratio, **_EVERYWHERE), "baseline"),
    "todo": Entry("ToDo (ratio is its own)", lambda _: ToDo(), "baseline"),
    "bound": Entry("speed limit of merging", Bound, "baseline"),
}


def _as_published(**settings: Any) -> Callable[[float], ToMA]:
    """The paper's settings, but for ``settings``."""
    return lambda ratio: ToMA.tile(ratio, **settings)


def _published(title: str, schedule: Schedule = _PAPER_SCHEDULE, **settings: Any) -> Entry:
    return Entry(f"{title} (paper)", _as_published(**settings), "paper", schedule)


# The rows of the paper's tables (`tomadiff paper`), whatever our own defaults become, and these beside them. Their
# titles say which is which. They are found by name like the others, but nothing iterates over them: some are slow.
PAPER: dict[str, Entry] = {
    "paper-tile": _published("ToMA tile"),
    "paper-stripe": _published("ToMA stripe", regions=Stripes(16)),
    "paper-whole": _published("ToMA", attention_regions=Whole()),
    "paper-stripe-whole": _published("ToMA of section 5.1", regions=Stripes(16), attention_regions=Whole()),
    "paper-once": _published("ToMA*", attention_regions=Whole(), span="block"),
    "paper-once-stripe": _published("ToMA* stripe", regions=Stripes(16), span="block"),
    "paper-random": _published("random", attention_regions=Whole(), selector="random"),
    "paper-strided": _published("strided", attention_regions=Whole(), selector="strided"),
    "paper-kmeans": _published("k-means", attention_regions=Whole(), selector="kmeans"),
    "paper-global": _published("facility location, whole grid", regions=Whole()),
    "paper-tiles-2": _published("tiles of 2×2", regions=Tiles(2), attention_regions=Whole()),
    "paper-tiles-8": _published("tiles of 8×8", regions=Tiles(8), attention_regions=Whole()),
    "paper-tiles-16": _published("tiles of 16×16", regions=Tiles(16), attention_regions=Whole()),
    "paper-pinv": _published("pseudo-inverse", attention_regions=Whole(), unmerge="pseudo-inverse"),
    "paper-every-1": _published("both every step", Schedule(1, 1)),
    "paper-every-5": _published("both every 5 steps", Schedule(5, 5)),
    "paper-every-10": _published("both every 10 steps", Schedule(10, 10)),
    "toma-default": Entry("ToMA (default)", ToMA, "toma"),
}


def entry(name: str) -> Entry:
    """An entry by name, the paper's included; an unknown name raises with the known ones."""
    if name == FULL:
        raise SettingError(
            f"{FULL!r} is the model as it is: tomadiff.remove(pipe) leaves it so, and forecast=… alone merges "
            "nothing. Name a method to merge."
        )
    known = CATALOGUE.get(name) or PAPER.get(name)
    if known is None:
        names = (*CATALOGUE, RECOMMENDED, FULL)
        near, all_of_them = did_you_mean(name, (*names, *PAPER)), ", ".join(map(repr, names))
        raise SettingError(f"method={name!r} is not known{near}; choose one of {all_of_them}.")
    return known


def named(name: str, ratio: float = 0.5) -> tuple[Method, Schedule]:
    """A method by name at a ratio, and its schedule; an unknown name raises with the known ones."""
    known = entry(name)
    method = known.make(ratio)
    return method, known.schedule or method.schedule


def asked(name: str, ratio: float | None) -> tuple[Method, Schedule]:
    """A method that somebody asks for by name; a ratio that it cannot have raises."""
    method, schedule = named(name, 0.5 if ratio is None else ratio)
    require_ratio(method, ratio)
    return method, schedule


def require_ratio(method: Method, ratio: float | None) -> None:
    """Raise if a ratio was asked for that ``method`` does not take."""
    if ratio not in (None, method.ratio):
        kind = type(method).__name__
        raise SettingError(
            f"{kind} has a ratio of its own, {method.ratio:g}, so {ratio:g} is not possible; leave the ratio out."
        )


def chosen_method(
    method: Method | float | str | None, ratio: float | None, settings: Mapping[str, Any]
) -> tuple[Method, Schedule]:
    """The method that somebody asks for, with its schedule: as it is, by name, or as a ratio of the default."""
    if isinstance(method, str):
        made, schedule = asked(method, ratio)
        return made.changed(settings), schedule
    if isinstance(method, int | float):
        if ratio is not None:
            raise SettingError(f"Two ratios were given, {method} and {ratio}; give one.")
        method, ratio = None, method
    made = (method or ToMA()).changed(settings if ratio is None else {"ratio": ratio, **settings})
    require_ratio(made, ratio)
    return made, made.schedule
