"""The last outputs of one guidance pass, and the output that follows from them; see :mod:`tomadiff.steps.forecast`.

The forecast at ``t`` is ``y₁ + γ · (t − t₁)/(t₁ − t₀) · (y₁ − y₀)`` with the last two computed outputs. ``γ = 0``
repeats the last one (order 0), ``γ = 1`` follows the line (order 1). For each sample, ``γ`` is what would have forecast
``y₁`` best from the outputs before it, so the run itself chooses between the orders. Outputs leave a line the more, the
further it is prolonged: what ``γ`` lacks of 1 grows with ``1 + (t − t₁)/(t₁ − t₀)`` from where it was measured.

The next computed output ``y₂`` says more about the steps before it than their forecasts knew: they lie between ``y₁``
and ``y₂`` now. What the forecasts missed is added to ``y₂``, so much that it makes up for it in what the sampler adds
up.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

_LARGEST_SHARE = 1.5  # of γ; beyond, the past says little
_LARGEST_RATIO = 4.0  # of sizes of steps: what a long step missed is too much for the output of a short one
_TINY = 1e-20
_GROWTH = 1.5  # between what a line with noise around it misses and what a parabola does


class PassHistory:
    """The last outputs of one guidance pass.

    At most three are held: two that were computed before, and the one that is being added.

    Args:
        form: names and shapes of the arguments.
        output: the first one, which may be a tree: a tensor, a list of samples, a pair, an output class of diffusers.
    """

    def __init__(self, form: Hashable, output: Any) -> None:
        self.form, self._structure, self._apart = form, _pytree.tree_structure(output), _has_list(output)
        self._kept: list[tuple[float, list[Any]]] = []  # the last two computed outputs and their times
        self._shares: list[Tensor] | None = None  # γ of each tensor, for each of its samples
        self._stretch = 1.0  # how far the line had been prolonged when γ was measured, in units of its length
        self._missed: list[tuple[float, float, list[Tensor]]] = []  # forecasts since: time, size of the step, reaches

    def fits(self, output: Any) -> bool:
        """Whether an output looks like the last one."""
        leaves, structure = _pytree.tree_flatten(output)
        last = self._kept[-1][1]
        return bool(structure == self._structure) and list(map(_looks, leaves)) == list(map(_looks, last))

    def add(self, time: float, output: Any) -> Tensor | None:
        """Keep a computed output; the error rate of what its forecast would have been, once there is one.

        The rate is relative to the output, per unit of :func:`growth`, of the worst sample, and stays on the device.
        """
        leaves, rate = _pytree.tree_leaves(output), None
        if self._kept and self._kept[-1][0] == time:  # no time has passed, so nothing can be measured
            self._kept.pop()
        elif self._shares is not None:
            errors = [self._error(*pair) for pair in zip(_floats(leaves), self._forecasts(time), strict=True)]
            rate = torch.cat(errors).max() / growth(time - self._kept[-1][0])
        if len(self._kept) == 2:
            self._shares, self._stretch = self._fit(time, leaves), self._prolonged(time)
        self._kept = [*self._kept[-1:], (time, list(map(_copy, leaves)))]
        return rate

    def forecast(self, time: float, size: float | None = None) -> Any:
        """The output at ``time``, of the same structure and types as a computed one.

        ``size`` is how much of it goes into the image, if :meth:`corrected` is to make up for what it misses.
        """
        if size is not None and len(self._kept) == 2:
            self._missed.append((time, size, self._reaches(time)))
        return self._like(self._kept[-1][1], self._forecasts(time))

    def corrected(self, time: float, size: float | None, output: Any) -> Any:
        """A computed output, and what the forecasts before it missed; to be called before :meth:`add`.

        What was missed lies between the outputs before and after it: half-way between the line through these two and
        the parabola through the last three.
        """
        missed, self._missed = self._missed, []
        if not missed or not size or max(abs(own / size) for _, own, _ in missed) > _LARGEST_RATIO:
            return output
        (first, old), (start, last) = self._kept
        ahead, behind = 0.0, [torch.zeros_like(reach) for reach in missed[0][2]]  # shares of the two trends
        for then, own, reaches in missed:
            bend = 0.5 * (then - start) * (then - time) / (time - first)
            ahead += own / size * (then - start + bend) / (time - start)
            behind = [
                sums + own / size * (reach + bend / (start - first))
                for sums, reach in zip(behind, reaches, strict=True)
            ]
        leaves = _pytree.tree_leaves(output)
        parts = zip(*map(_floats, (leaves, last, old)), behind, strict=True)
        new = [two + ahead * (two - one) - _by_sample(share, one) * (one - zero) for two, one, zero, share in parts]
        return self._like(leaves, new)

    def _forecasts(self, time: float) -> list[Tensor]:
        """In float32; with one output alone, that again."""
        last = _floats(self._kept[-1][1])
        if len(self._kept) < 2:
            return last
        parts = zip(last, _floats(self._kept[0][1]), self._reaches(time), strict=True)
        return [one + _by_sample(reach, one) * (one - zero) for one, zero, reach in parts]

    def _reaches(self, time: float) -> list[Tensor]:
        """How much of the trend between the last two outputs is added to the last one, for each tensor and sample."""
        if self._shares is None:
            return [torch.zeros(1, device=leaf.device) for leaf in _floats(self._kept[-1][1])]
        prolonged = self._prolonged(time)
        further = (1 + prolonged) / (1 + self._stretch)
        return [prolonged * (1 + (share - 1) * further).clamp(0.0, _LARGEST_SHARE) for share in self._shares]

    def _like(self, leaves: list[Any], new: list[Tensor]) -> Any:
        """An output of the same structure and types, with other numbers."""
        floats = iter(new)
        parts = [next(floats).to(leaf.dtype, copy=True) if _is_float(leaf) else _copy(leaf) for leaf in leaves]
        return _pytree.tree_unflatten(parts, self._structure)

    def _prolonged(self, time: float) -> float:
        """How far the line through the last two outputs is prolonged until ``time``, in units of its length."""
        (before, _), (then, _) = self._kept
        return (time - then) / (then - before)

    def _trend(self, time: float) -> list[Tensor]:
        """How far the line through the last two outputs goes from the last one until ``time``."""
        (_, older), (_, newer) = self._kept
        scale = self._prolonged(time)
        return [(new - old) * scale for old, new in zip(_floats(older), _floats(newer), strict=True)]

    def _fit(self, time: float, leaves: list[Any]) -> list[Tensor]:
        """The share of the trend that went on, by least squares for each sample."""
        shares = []
        for new, last, trend in zip(_floats(leaves), _floats(self._kept[-1][1]), self._trend(time), strict=True):
            along, size = self._sum((new - last) * trend), self._sum(trend * trend)
            shares.append((along / size.clamp_min(_TINY)).clamp(0.0, _LARGEST_SHARE))
        return shares

    def _error(self, output: Tensor, forecast: Tensor) -> Tensor:
        """Relative to the output, for each sample."""
        return (self._sum((output - forecast).square()) / self._sum(output.square()).clamp_min(_TINY)).sqrt()

    def _sum(self, values: Tensor) -> Tensor:
        """Over each sample."""
        return values.flatten(0 if self._apart or values.dim() < 2 else 1).sum(-1).reshape(-1)


def _by_sample(values: Tensor, like: Tensor) -> Tensor:
    """One value for each sample, to be multiplied with."""
    return values.view(-1, *[1] * (like.dim() - 1))


def growth(distance: float) -> float:
    """How the error of a forecast grows with its distance in time."""
    return float(abs(distance) ** _GROWTH)


def needs_grad(output: Any) -> bool:
    """Whether a graph hangs on an output."""
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in _pytree.tree_leaves(output))


def _has_list(output: Any) -> bool:
    """Whether samples come as a list (Z-Image)."""
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else (output,)
    return any(isinstance(part, list) for part in parts)


def _copy(leaf: Any) -> Any:
    """Others may write into theirs: schedulers do, and CUDA graphs."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _floats(leaves: list[Any]) -> list[Tensor]:
    """What is forecast, in float32 at least; other tensors and values are given again as they were."""
    return [leaf.to(torch.promote_types(leaf.dtype, torch.float32)) for leaf in leaves if _is_float(leaf)]


def _looks(leaf: Any) -> tuple[object, ...]:
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else (type(leaf),)
