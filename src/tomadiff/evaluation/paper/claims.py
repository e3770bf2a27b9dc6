"""Claims that can be checked on any model, and what checking them gives.

A :class:`Claim` is a sentence and the :class:`Check` objects it stands on. A check compares methods on the same prompts
and seeds and looks at the confidence interval of the difference: it holds if the whole interval does, fails if none of
it does, and is open in between. So a verdict never rests on which of two averages happens to be larger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tomadiff.evaluation.metrics.distances import Metric, metric
from tomadiff.evaluation.metrics.statistics import Interval
from tomadiff.evaluation.report.report import title_of
from tomadiff.evaluation.runs.variants import Variant

ENOUGH = 8  # samples; intervals of fewer look narrower than they are


class Verdict(Enum):
    """What checking a claim gave."""

    HOLDS = "reproduces"
    OPEN = "cannot be told"
    FAILS = "does not reproduce"
    UNTESTED = "not tested"


class Evidence(Protocol):
    """What was measured, as checks ask for it; ``None`` where it was not."""

    def metric(self, kind: str) -> str | None:
        """The metric that stands for a kind the paper names: "mse", "dino" or "clip"."""
        ...

    def value(self, name: str, one: Variant) -> Interval | None:
        """The mean of a metric."""
        ...

    def difference(self, name: str, one: Variant, other: Variant) -> Interval | None:
        """Mean of ``one − other`` on the same prompts and seeds."""
        ...

    def speed_up(self, one: Variant, other: Variant) -> Interval | None:
        """Seconds of ``other`` by those of ``one``: above 1 if ``one`` is faster."""
        ...


@dataclass(frozen=True)
class Finding:
    """What one check found, and the numbers it rests on."""

    verdict: Verdict
    words: str


class Check(ABC):
    """One comparison."""

    @abstractmethod
    def look(self, evidence: Evidence) -> Finding:
        """Compare."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, in our words, and what it stands on.

    Attributes:
        text: the sentence.
        checks: all of them must hold.
        about_default: whether it is about this library's default, which the paper does not know.
    """

    text: str
    checks: tuple[Check, ...]
    about_default: bool = False


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict
    findings: tuple[Finding, ...]


def judge(claim: Claim, evidence: Evidence) -> Judged:
    """Look at everything a claim stands on; what could not be tested does not count, unless nothing could."""
    findings = tuple(check.look(evidence) for check in claim.checks)
    seen = {finding.verdict for finding in findings}
    order = (Verdict.FAILS, Verdict.OPEN, Verdict.HOLDS, Verdict.UNTESTED)
    return Judged(claim, next(verdict for verdict in order if verdict in seen), findings)


# ---------------------------------------------------------------------------------------------- images
@dataclass(frozen=True)
class Better(Check):
    """``one`` scores better than ``other``."""

    one: Variant
    other: Variant
    kind: str

    def look(self, evidence: Evidence) -> Finding:
        """See :class:`Check`."""
        name = evidence.metric(self.kind)
        if name is None:
            return _missing(self.kind)
        apart = evidence.difference(name, self.one, self.other)
        if apart is None:
            return _unmeasured(self.one, self.other)
        known = metric(name)
        gain = apart if known.better == "higher" else Interval(-apart.value, -apart.high, -apart.low, apart.count)
        return Finding(_side_of(gain, 0.0), _comparison(self.one, self.other, known, apart))


@dataclass(frozen=True)
class Alike(Check):
    """``one`` and ``other`` differ by less than a share (``within``) of what ``other`` scores."""

    one: Variant
    other: Variant
    kind: str
    within: float

    def look(self, evidence: Evidence) -> Finding:
        """See :class:`Check`."""
        name = evidence.metric(self.kind)
        if name is None:
            return _missing(self.kind)
        apart, score = evidence.difference(name, self.one, self.other), evidence.value(name, self.other)
        if apart is None or score is None:
            return _unmeasured(self.one, self.other)
        words = f"{_comparison(self.one, self.other, metric(name), apart)}, which is {_part(apart, score)}"
        return Finding(_inside(apart, self.within * abs(score.value)), words)


@dataclass(frozen=True)
class Below(Check):
    """``one`` scores below a number; only the paper's own metric will do, for the number is the paper's."""

    one: Variant
    kind: str
    limit: float

    def look(self, evidence: Evidence) -> Finding:
        """See :class:`Check`."""
        score = evidence.value(self.kind, self.one)
        if score is None:
            return _missing(self.kind)
        margin = Interval(self.limit - score.value, self.limit - score.high, self.limit - score.low, score.count)
        words = f"{_name(self.one)}: {metric(self.kind).title} {score}, limit {self.limit:g}"
        return Finding(_side_of(margin, 0.0), words)


# ---------------------------------------------------------------------------------------------- time
@dataclass(frozen=True)
class Faster(Check):
    """``one`` takes less time than ``other``."""

    one: Variant
    other: Variant

    def look(self, evidence: Evidence) -> Finding:
        """See :class:`Check`."""
        return _paced(self.one, self.other, 1.0, evidence)


@dataclass(frozen=True)
class NearlyAsFast(Check):
    """``one`` takes no more than ``1 + within`` times as long as ``other``."""

    one: Variant
    other: Variant
    within: float

    def look(self, evidence: Evidence) -> Finding:
        """See :class:`Check`."""
        return _paced(self.one, self.other, 1 / (1 + self.within), evidence)


def _paced(one: Variant, other: Variant, least: float, evidence: Evidence) -> Finding:
    pace = evidence.speed_up(one, other)
    if pace is None:
        return _unmeasured(one, other)
    words = f"{_name(one)} is {pace.value:.2f}× [{pace.low:.2f}, {pace.high:.2f}] as fast as {_name(other)}"
    return Finding(_side_of(pace, least), words)


# ---------------------------------------------------------------------------------------------- words and intervals
def _side_of(interval: Interval, limit: float) -> Verdict:
    """Whether the interval lies above the limit."""
    if interval.count < ENOUGH:
        return Verdict.OPEN
    if interval.low > limit:
        return Verdict.HOLDS
    return Verdict.FAILS if interval.high < limit else Verdict.OPEN


def _inside(interval: Interval, limit: float) -> Verdict:
    if interval.count < ENOUGH:
        return Verdict.OPEN
    if -limit <= interval.low and interval.high <= limit:
        return Verdict.HOLDS
    return Verdict.FAILS if interval.low > limit or interval.high < -limit else Verdict.OPEN


def _comparison(one: Variant, other: Variant, known: Metric, apart: Interval) -> str:
    low, middle, high = (f"{value:+.{known.digits}f}" for value in (apart.low, apart.value, apart.high))
    return f"{_name(one)} against {_name(other)}: {known.title} {middle} [{low}, {high}]"


def _part(apart: Interval, score: Interval) -> str:
    return f"{abs(apart.value / score.value):.1%} of {score.value:.4g}" if score.value else "of 0"


def _name(variant: Variant) -> str:
    title = title_of(variant.name)
    return title if variant.method is None else f"{title} {variant.ratio:.0%}"


def _missing(kind: str) -> Finding:
    return Finding(Verdict.UNTESTED, f"no network for {kind.upper()} was at hand")


def _unmeasured(*variants: Variant) -> Finding:
    return Finding(Verdict.UNTESTED, f"{' or '.join(map(_name, variants))} was not measured")


def counts(judged: Sequence[Judged]) -> dict[Verdict, int]:
    """How many claims there are of each verdict, the good ones first."""
    return {verdict: sum(one.verdict is verdict for one in judged) for verdict in Verdict}
