"""Merging and unmerging by themselves, against ToMeSD's: the paper's tables 4 and 5.

Tokens have the widths of SDXL's two levels with attention. ToMeSD is the package ``tomesd`` where it is installed, and
this library's in any case. Plans are made beforehand: timed is what happens around every layer. Everything runs in
turn, round after round, and the best rounds are compared, since a busy machine only ever adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tomadiff.cost import cost_of
from tomadiff.errors import require_count
from tomadiff.evaluation.runs.journal import Journal
from tomadiff.evaluation.runs.synthetic_image import synthetic_image, to_tokens
from tomadiff.evaluation.runs.timer import interleaved
from tomadiff.merging.grid import Grid
from tomadiff.methods.registry import entry, named
from tomadiff.utils.reading import MEASURED, OBJECTS, RATIO, TEXT, WHOLE, require_record

RATIOS = (0.25, 0.5, 0.75)
SIZES = {4096: (Grid(64, 64), 640), 1024: (Grid(32, 32), 1280)}
"""Grid and channels by the number of tokens."""

PROMISED = ("paper-tile", "paper-stripe")  # those that are promised to be faster
PACKAGE, RIVAL = "tomesd-package", "tomesd"
UNPROMISED = ("paper-whole",)  # of which nothing is promised
METHODS = (RIVAL, *PROMISED, *UNPROMISED)
WARM_UP, ROUNDS = 2, 30


@dataclass(frozen=True)
class Contender:
    """One way to merge and unmerge tokens of a given size."""

    name: str
    merge: Callable[[Tensor], Tensor]
    unmerge: Callable[[Tensor], Tensor]

    @property
    def title(self) -> str:
        """What tables call it."""
        return "ToMeSD (package)" if self.name == PACKAGE else entry(self.name).title


@dataclass(frozen=True)
class Timing:
    """What merging or unmerging took.

    Attributes:
        tokens: before merging.
        channels: of each token.
        ratio: share of tokens removed.
        method: name of the contender.
        title: what tables call it.
        op: "merge" or "unmerge".
        best: seconds of the fastest round.
        middle: seconds of the median round.
        launches: operators that compute something.
    """

    tokens: int
    channels: int
    ratio: float
    method: str
    title: str
    op: str
    best: float
    middle: float
    launches: float

    def as_row(self) -> dict[str, Any]:
        """Plain numbers, for JSON and CSV."""
        return asdict(self)


TIMING = {"tokens": WHOLE, "channels": WHOLE, "ratio": RATIO, "method": TEXT, "title": TEXT, "op": TEXT}
TIMING |= dict.fromkeys(("best", "middle", "launches"), MEASURED)
_ROW = {"timings": OBJECTS}


def contenders(tokens: Tensor, grid: Grid, ratio: float) -> list[Contender]:
    """Everybody, with plans for ``tokens`` ``(B, N, C)`` made."""
    found = [] if (package := _package(tokens, grid, ratio)) is None else [package]
    for name in METHODS:
        plan = named(name, ratio)[0].plan(tokens, grid)
        found.append(Contender(name, plan.merge, plan.unmerge))
    return found


def _package(tokens: Tensor, grid: Grid, ratio: float) -> Contender | None:
    """The two functions that the package makes for every block; ``None`` where it is not installed."""
    try:
        from tomesd.merge import bipartite_soft_matching_random2d as match
    except ImportError:
        return None
    dice = torch.Generator(tokens.device).manual_seed(0)
    merge, unmerge = match(tokens, grid.width, grid.height, 2, 2, int(grid.tokens * ratio), generator=dice)
    return Contender(PACKAGE, merge, unmerge)


def measure(
    sizes: Sequence[int] = tuple(SIZES),
    ratios: Sequence[float] = RATIOS,
    rounds: int = ROUNDS,
    batch: int = 1,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    done: Callable[[], None] = lambda: None,
    journal: Journal | None = None,
) -> list[Timing]:
    """Time everybody at every size and ratio; ``done`` is called after each ratio of a size.

    What the ``journal`` holds is not timed again; a ratio of a size is one row of it.
    """
    require_count("rounds", rounds)
    journal = journal or Journal()
    timings: list[Timing] = []
    with torch.no_grad():
        for size in sizes:
            grid, channels = SIZES[size]
            tokens = to_tokens(synthetic_image(), grid.height, channels)
            tokens = (tokens / tokens.std()).repeat(batch, 1, 1).to(device, dtype)
            for ratio in ratios:
                asked = {"tokens": list(tokens.shape), "ratio": ratio, "rounds": rounds, "on": f"{device} {dtype}"}
                row = journal.row(asked, _ROW, partial(_row, tokens, grid, ratio, rounds))
                timings += [Timing(**require_record(one, TIMING, "a timing")) for one in row["timings"]]
                done()
    return timings


def _row(tokens: Tensor, grid: Grid, ratio: float, rounds: int) -> dict[str, Any]:
    return {"timings": [one.as_row() for one in _in_turn(contenders(tokens, grid, ratio), tokens, ratio, rounds)]}


def _in_turn(field: Sequence[Contender], tokens: Tensor, ratio: float, rounds: int) -> Iterator[Timing]:
    jobs = {(one.name, op): (one, call) for one, op, call in _jobs(field, tokens)}
    times = interleaved({key: call for key, (_, call) in jobs.items()}, tokens.device, rounds, WARM_UP)
    for (name, op), (one, call) in jobs.items():
        own, shape = times[name, op], (tokens.shape[1], tokens.shape[2], ratio)
        yield Timing(*shape, name, one.title, op, own.least, own.median, cost_of(call).launches)


def _jobs(field: Sequence[Contender], tokens: Tensor) -> Iterator[tuple[Contender, str, Callable[[], Tensor]]]:
    for one in field:
        merged = one.merge(tokens)
        yield one, "merge", lambda one=one: one.merge(tokens)  # type: ignore[misc]
        yield one, "unmerge", lambda one=one, merged=merged: one.unmerge(merged)  # type: ignore[misc]


@dataclass(frozen=True)
class Comparison:
    """One of ToMA's next to ToMeSD at the same size, ratio and op."""

    own: Timing
    rival: Timing

    @property
    def share(self) -> float:
        """Of ToMeSD's time."""
        return self.own.best / self.rival.best

    def __str__(self) -> str:
        own, times = self.own, f"{1 / self.share:.2f} times as fast as {self.rival.title}"
        return f"{own.title}, {own.op} of {own.tokens} tokens at {own.ratio:g}: {times}"


def compare(timings: Sequence[Timing], methods: Sequence[str] = PROMISED) -> list[Comparison]:
    """Each of ``methods`` next to the package's ToMeSD, or this library's without it; the worst first."""
    rival = PACKAGE if any(timing.method == PACKAGE for timing in timings) else RIVAL
    others = {(other.tokens, other.ratio, other.op): other for other in timings if other.method == rival}
    found = [Comparison(own, others[own.tokens, own.ratio, own.op]) for own in timings if own.method in methods]
    return sorted(found, key=lambda pair: -pair.share)
