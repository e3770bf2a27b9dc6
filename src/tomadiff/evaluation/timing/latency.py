"""Timing methods against each other: interleaved rounds, warm-up, and the spread next to the median.

Every round runs every contender once, so that a machine that slows down slows all of them, and speed-ups compare
times of the same round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tomadiff.cost import Cost, cost_of
from tomadiff.errors import require_count
from tomadiff.evaluation.report.report import title_of
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.journal import Journal
from tomadiff.evaluation.runs.timer import seconds_of
from tomadiff.evaluation.runs.variants import Variant, supported_variants, variants
from tomadiff.evaluation.timing.workloads import Workload
from tomadiff.patch import Patch
from tomadiff.utils.reading import MEASURED, NUMBER, NUMBERS, OBJECTS, TEXT, FileError, Kind

Parts = dict[str, list[float]]
"""Share and seconds of every part of a unit."""


def _are_times(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(NUMBER.fits(one) and one > 0 for one in value)


def _are_parts(value: object) -> bool:
    """Of every contender, share and seconds by the name of a part."""
    if not OBJECTS.fits(value) or not isinstance(value, list):
        return False
    return all(one and all(_are_times(part) and len(part) == 2 for part in one.values()) for one in value)


_COUNTS = dict.fromkeys(("flops", "launches", "peak_bytes", "plan_bytes"), MEASURED)
_ROUND = {"parts": Kind("a list of parts with their share and seconds", _are_parts)}
ROW = {
    **dict.fromkeys(("method", "title", "unit"), TEXT),
    **dict.fromkeys(("seconds_min", "seconds_median", "seconds_spread", "rounds", "speed_up", "ratio"), MEASURED),
    **_COUNTS,
    "parts": NUMBERS,
    "seconds": Kind("a list of seconds", _are_times),
}
"""What :meth:`Measurement.as_row` holds."""


@dataclass(frozen=True)
class Measurement:
    """What a contender took.

    Attributes:
        unit: what one measurement stands for: an image, or the mean step of a window.
        seconds: one per round.
        parts: median seconds of each kind of call that makes up the unit.
        speed_up: the full model's seconds by its own, the geometric mean over rounds.
        flops, launches, peak_bytes: see :class:`~tomadiff.cost.Cost`.
        plan_bytes: held by plans at the end.
    """

    method: str
    title: str
    ratio: float
    unit: str
    seconds: tuple[float, ...]
    parts: dict[str, float]
    speed_up: float
    flops: float
    launches: float
    peak_bytes: float
    plan_bytes: int

    @property
    def least(self) -> float:
        """The best round."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median

    def as_row(self) -> dict[str, Any]:
        """Plain numbers, for JSON and CSV."""
        own = asdict(self)
        times = {"seconds_min": self.least, "seconds_median": self.median, "seconds_spread": self.spread}
        return own | times | {"rounds": len(self.seconds)}


def contenders(
    methods: Sequence[str], ratios: Sequence[float], workload: Workload, forecasts: Sequence[float] = (0.0,)
) -> tuple[list[Variant], list[str]]:
    """In full, then every method at every ratio with every forecast; and one line for each that cannot work here."""
    return supported_variants(workload.target, variants(methods, ratios, forecasts))


def measure(
    workload: Workload,
    field: Sequence[Variant],
    rounds: int = 5,
    done: Callable[[], None] = lambda: None,
    journal: Journal | None = None,
    failures: Failures | None = None,
) -> list[Measurement]:
    """Count every contender once, then time all of them in interleaved rounds; ``done`` is called after each.

    What the ``journal`` holds is not measured again. A round is one row of it: its times belong together. A contender
    that fails is written down in ``failures`` and left out, except for the first, which all are compared with.
    """
    require_count("rounds", rounds)
    journal, counted = journal or Journal(), dict[Variant, dict[str, Any]]()
    for contender in field:  # all of the code runs, so it is the warm-up round too
        what = {"model": workload.title, "counted": repr(contender)}
        with nullcontext() if failures is None or contender == field[0] else failures.of(contender.label):
            counted[contender] = journal.row(what, _COUNTS, partial(_counted, workload, contender))
        done()
    timed: dict[Variant, list[Parts]] = {contender: [] for contender in counted}
    for turn in range(rounds):
        row = _row(workload, list(timed), turn, journal, failures)
        timed = {contender: [*timed[contender], parts] for contender, parts in row.items()}
        if any(own[0].keys() != own[-1].keys() for own in timed.values()):
            raise FileError(f"{journal.path}: its rounds do not belong together; delete it.")
        for _ in row:
            done()
    return [_measurement(workload, one, own, timed[field[0]], counted[one]) for one, own in timed.items()]


class _LeftOut(Exception):  # noqa: N818 - the failure itself is written down elsewhere
    """A contender failed in the middle of a round."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place


def _row(
    workload: Workload, field: list[Variant], turn: int, journal: Journal, failures: Failures | None
) -> dict[Variant, Parts]:
    """Everyone's parts in one round; a round in which somebody failed is run again without."""
    asked = {"model": workload.title, "round": turn, "contenders": [repr(contender) for contender in field]}
    try:
        row = journal.row(asked, _ROUND, partial(_round, workload, field, turn, failures))
    except _LeftOut as left:
        return _row(workload, field[: left.place] + field[left.place + 1 :], turn, journal, failures)
    if len(row["parts"]) != len(field):
        raise FileError(f"{journal.path}: its rounds do not belong together; delete it.")
    return dict(zip(field, row["parts"], strict=True))


def _round(
    workload: Workload, field: Sequence[Variant], turn: int, failures: Failures | None
) -> dict[str, list[Parts]]:
    """Everyone's parts, in the order of the field."""
    found = {}
    for place in _order(len(field), turn):
        try:
            found[place] = _timed(workload, field[place])
        except Exception as problem:
            if failures is None or place == 0:
                raise
            failures.note(field[place].label, problem)
            raise _LeftOut(place) from problem
    return {"parts": [found[place] for place in range(len(field))]}


def _order(count: int, turn: int) -> list[int]:
    """Each round starts with another contender: nobody always runs behind the same one."""
    return [(place + turn) % count for place in range(count)]


def _counted(workload: Workload, contender: Variant) -> dict[str, float]:
    with contender.on(workload.target) as patch:
        workload.warm(patch)
        total = Cost(0, 0, 0)
        for part in workload.parts(patch):
            total = total + cost_of(part.call).scaled(part.share)
        counts = {"flops": total.flops, "launches": total.launches, "peak_bytes": total.peak_bytes}
        return {**counts, "plan_bytes": _plan_bytes(patch)}


def _plan_bytes(patch: Patch | None) -> int:
    models = () if patch is None else patch.report().models
    return sum(level.bytes_held for model in models for level in model.levels)


def _timed(workload: Workload, contender: Variant) -> Parts:
    """Share and seconds of every part."""
    with contender.on(workload.target) as patch:
        workload.warm(patch)
        return {part.name: [part.share, seconds_of(part.call, workload.device)] for part in workload.parts(patch)}


def _whole(parts: Parts) -> float:
    return sum(share * seconds for share, seconds in parts.values())


def _measurement(
    workload: Workload,
    contender: Variant,
    own: list[Parts],
    base: list[Parts],
    counts: Mapping[str, Any],
) -> Measurement:
    seconds = tuple(map(_whole, own))
    return Measurement(
        method=contender.name,
        title=title_of(contender.name),
        ratio=contender.ratio,
        unit=workload.unit,
        seconds=seconds,
        parts={name: statistics.median(part[name][1] for part in own) for name in own[0]},
        speed_up=statistics.geometric_mean(map(_whole, base)) / statistics.geometric_mean(seconds),
        **counts,
    )
