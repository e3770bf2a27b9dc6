"""What claims are checked on: the images of a run, or times alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from tomadiff.evaluation.metrics.samples import Group, difference, grouped, matched, resampled
from tomadiff.evaluation.metrics.statistics import Interval, ratio_interval
from tomadiff.evaluation.metrics.table import Results
from tomadiff.evaluation.runs.record import Run, RunError
from tomadiff.evaluation.runs.variants import Variant

KINDS = {"mse": ("mse",), "dino": ("dino", "judge"), "clip": ("clip_t", "judge_t")}
"""What the paper names, and what may stand for it, in order: emoji-judge reads emoji, where CLIP and DINO were trained
on photographs."""


class MeasuredRun:
    """A measured run."""

    def __init__(self, run: Run, results: Results) -> None:
        self.run, self.results, self.groups = run, results, grouped(run)

    def metric(self, kind: str) -> str | None:
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        return next((name for name in KINDS[kind] if name in self.results.columns), None)

    def value(self, name: str, one: Variant) -> Interval | None:
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        rows = [row for row in self.results.rows if (row.method, row.ratio) == one.group]
        return rows[0].metrics.get(name) if rows else None

    def difference(self, name: str, one: Variant, other: Variant) -> Interval | None:
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        try:
            return difference(self.run, name, one.group, other.group)
        except RunError:  # one of them was not generated, or not measured
            return None

    def speed_up(self, one: Variant, other: Variant) -> Interval | None:
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        pairs = matched(self.groups.get(one.group, {}), self.groups.get(other.group, {}))
        timed = [pair for pair in pairs if min(sample.seconds for sample in pair) > 0]
        if not timed:
            return None
        ratios = torch.tensor([theirs.seconds / own.seconds for own, theirs in timed])
        return ratio_interval(ratios, resampled([own.prompt for own, _ in timed]))


class Timed:
    """Seconds of interleaved rounds, by name and ratio of variants; no images."""

    def __init__(self, seconds: Mapping[Group, Sequence[float]]) -> None:
        self.seconds = seconds

    def metric(self, kind: str) -> str | None:  # noqa: ARG002 - none of them
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        return None

    def value(self, name: str, one: Variant) -> Interval | None:  # noqa: ARG002
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        return None

    def difference(self, name: str, one: Variant, other: Variant) -> Interval | None:  # noqa: ARG002
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`."""
        return None

    def speed_up(self, one: Variant, other: Variant) -> Interval | None:
        """See :class:`tomadiff.evaluation.paper.claims.Evidence`; rounds are compared with themselves."""
        both = [self.seconds.get(variant.group) for variant in (one, other)]
        if None in both:
            return None
        return ratio_interval(torch.tensor(list(_quotients(*filter(None, both)))))


def _quotients(own: Iterable[float], others: Iterable[float]) -> Iterable[float]:
    return (theirs / mine for mine, theirs in zip(own, others, strict=True))
