"""How sure an average is: confidence intervals by resampling, each with a generator of its own.

Images of one prompt resemble each other, so where there are enough prompts whole prompts are resampled, not single
images (``groups``); the interval then says what another set of *prompts* would give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tomadiff.errors import SettingError, ShapeError, require_count

RESAMPLES = 2000  # of plain means: cheap
SET_RESAMPLES = 100  # of set metrics, each of which is a computation of its own


@dataclass(frozen=True)
class Interval:
    """A number with its confidence interval.

    Attributes:
        value: computed from the samples as they are.
        low: lower end of the interval.
        high: upper end.
        count: of samples behind it.
    """

    value: float
    low: float
    high: float
    count: int

    def digits(self, most: int) -> int:
        """How many digits after the point the interval leaves (or, without one, the value): at most ``most``."""
        spread = (self.high - self.low) / 2 or abs(self.value) / 10
        if not 0 < spread < math.inf:
            return most
        return max(0, min(most, 1 - math.floor(math.log10(spread))))

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def mean_interval(
    values: Tensor,
    groups: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of ``values`` ``(N,)`` and the spread of its bootstrap means.

    Args:
        values: one number per sample.
        groups: what each sample belongs to, such as its prompt; whole groups are resampled.
        confidence: share of resamples inside the interval.
        resamples: how many.
        seed: of the generator.
    """
    totals, counts = _per_group(_checked(values, confidence, resamples), groups)
    picks = torch.randint(len(totals), (resamples, len(totals)), generator=torch.Generator().manual_seed(seed))
    means = totals[picks].sum(1) / counts[picks].sum(1)
    low, high = _ends(means, confidence)
    return Interval(values.double().mean().item(), low, high, len(values))


def ratio_interval(ratios: Tensor, groups: Sequence[Hashable] | None = None) -> Interval:
    """The geometric mean of ``ratios`` ``(N,)``, as :func:`mean_interval` has it of plain means.

    That of the inverse ratios is its inverse, and so are the ends of the interval: who is 1.2 times as fast as another
    is not beaten by it as well.
    """
    logarithms = mean_interval(ratios.double().log(), groups)
    value, low, high = (math.exp(end) for end in (logarithms.value, logarithms.low, logarithms.high))
    return Interval(value, low, high, logarithms.count)


def paired_difference(
    values: Tensor,
    others: Tensor,
    groups: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of ``values − others`` over matching samples ``(N,)``; an interval without 0 tells the two apart.

    Much narrower than the gap of two separate intervals: what makes a prompt hard is hard for both.
    """
    _require_pairs(values, others)
    return mean_interval(values.double() - others.double(), groups, confidence, resamples, seed)


def paired_ratio(
    values: Tensor,
    others: Tensor,
    groups: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of ``values`` over the mean of ``others``, matching samples resampled together; 1 is no difference.

    For errors, where a mean is a matter of few bad images: those are bad for both.
    """
    _require_pairs(values, others)
    above, _ = _per_group(_checked(values, confidence, resamples), groups)
    below, _ = _per_group(_checked(others, confidence, resamples), groups)
    picks = torch.randint(len(above), (resamples, len(above)), generator=torch.Generator().manual_seed(seed))
    low, high = _ends(above[picks].sum(1) / below[picks].sum(1), confidence)
    return Interval((above.sum() / below.sum()).item(), low, high, len(values))


def set_interval(
    metric: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    paired: bool = False,
    confidence: float = 0.95,
    resamples: int = SET_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A metric of two whole sets of features ``(N, D)`` and ``(M, D)``, such as FID, with the spread of its resamples.

    A resample repeats samples, and both FID and KID of a set with repeats are too large; so the interval takes the
    spread of the resamples around their mean, and puts it around the value of the sets as they are.

    Args:
        metric: ``(N, D), (M, D) → ()``.
        x: features of one set.
        y: features of the other.
        paired: rows of both belong together (same prompt and seed), and are resampled together.
        confidence: share of resamples inside the interval.
        resamples: how many.
        seed: of the generator.
    """
    _checked(x, confidence, resamples)
    own, value = torch.Generator().manual_seed(seed), metric(x, y).item()
    values = torch.stack([metric(*_resample(x, y, paired, own)) for _ in range(resamples)]).double()
    low, high = _ends(values - values.mean() + value, confidence)
    return Interval(value, min(low, value), max(high, value), min(len(x), len(y)))


def _resample(x: Tensor, y: Tensor, paired: bool, own: torch.Generator) -> tuple[Tensor, Tensor]:
    rows = torch.randint(len(x), (len(x),), generator=own)
    return x[rows], y[rows] if paired else y[torch.randint(len(y), (len(y),), generator=own)]


def _per_group(values: Tensor, groups: Sequence[Hashable] | None) -> tuple[Tensor, Tensor]:
    """Sum and count of the values of each group ``(G,)``; every sample its own group if there are none."""
    if groups is None:
        return values, torch.ones_like(values)
    if len(groups) != len(values):
        raise ShapeError(f"{len(values)} values come with {len(groups)} groups; give one for each.")
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    place = torch.tensor([numbers[group] for group in groups])
    empty = torch.zeros(len(numbers), dtype=values.dtype)
    return empty.index_add(0, place, values), empty.index_add(0, place, torch.ones_like(values))


def _require_pairs(values: Tensor, others: Tensor) -> None:
    if values.shape != others.shape:
        raise ShapeError(f"Paired values match one by one; given were {tuple(values.shape)}, {tuple(others.shape)}.")


def _ends(values: Tensor, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = values.quantile(torch.tensor([tail, 1 - tail], dtype=values.dtype)).tolist()
    return low, high


def _checked(values: Tensor, confidence: float, resamples: int) -> Tensor:
    require_count("resamples", resamples)
    if not 0 < confidence < 1:
        raise SettingError(f"confidence={confidence!r} is not possible; it lies between 0 and 1, such as 0.95.")
    if len(values) == 0:
        raise ShapeError("There are no samples to average.")
    return values.detach().double().cpu()
