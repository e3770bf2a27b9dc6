"""Flux merges in ComfyUI as in diffusers.

Both rotate queries and keys in float32, whatever the weights are in, and round differently: ComfyUI multiplies and
adds at once. That is 1e-7 of a similarity, and enough to decide a tie. Ties are common: where two tokens are left that
stand for nothing but each other, choosing either gains ``1 + S_ab − best_a − best_b``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb
from torch import Tensor

import tomadiff
from tomadiff.merging.select import Selection, greedy

from . import host as host
from . import reference, tiny

import comfy.ldm.flux.math  # isort: skip
from integrations.comfyui.sampling import Acceleration

from .test_merging import accelerated, far, flux, sigmas_of, summary

_FIXTURES = flux  # used by its name
_GRID = 2.0**-16  # sums of up to 256 multiples of it are exact in float32

Choice = tuple[Tensor, Selection]


class Noted:
    """The selector of the default, which notes what it was given and what it chose."""

    def __init__(self) -> None:
        self.choices: list[Choice] = []

    def __call__(self, similarity: Tensor, count: int, mask: Tensor | None = None) -> Selection:
        chosen = greedy(similarity, count, mask)
        self.choices.append((similarity.clone(), chosen))
        return chosen

    @contextmanager
    def only(self) -> Iterator[list[Choice]]:
        """What is chosen inside alone."""
        self.choices = []
        yield self.choices


def with_exact_ties(similarity: Tensor, count: int, mask: Tensor | None = None) -> Selection:
    """The selector of the default; what would be tied without rounding is, and goes to the lowest index."""
    even = (similarity + similarity.transpose(1, 2)) / 2
    return greedy((even / _GRID).round() * _GRID, count, mask)


def rotated_as_in_diffusers(query: Tensor, key: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """In place of ComfyUI's function of the same arguments; ``tables`` are rotations ``(…, S, D / 2, 2, 2)``."""
    cosine, sine = (tables[0, 0, :, :, row, 0].repeat_interleave(2, dim=-1) for row in (0, 1))
    return tuple(apply_rotary_emb(one, (cosine, sine)) for one in (query, key))


def in_comfyui(patcher: Any, positive: list[Any], seed: int = 0) -> Tensor:
    return tiny.sample(patcher, positive, positive, cfg=1.0, seed=seed)


def in_diffusers(model: Any, source: Any, positive: list[Any], method: tomadiff.ToMA, seed: int = 0) -> Tensor:
    """ComfyUI's blocks are merged whole."""
    with tomadiff.apply(source, method, guard=False) as patch:
        predict = reference.flux(model, source, positive, guidance=3.5)
        return reference.euler(model, predict, sigmas_of(model), patch, (1, 4, 32, 32), seed)


def test_ratio_0_changes_no_bit(flux: Any) -> None:
    model, _, positive = flux
    assert torch.equal(in_comfyui(accelerated(model, 0.0), positive), in_comfyui(model, positive))


def test_flux_changes_where_the_built_in_node_does_nothing(flux: Any) -> None:
    from comfy_extras.nodes_tomesd import TomePatchModel

    model, _, positive = flux
    plain = in_comfyui(model, positive)
    built_in = TomePatchModel.execute(model, 0.5).args[0]
    assert far(in_comfyui(built_in, positive), plain) == 0.0
    ours = accelerated(model)
    assert far(in_comfyui(ours, positive), plain) > 1e-3
    assert "50.0%" in summary(ours)
    assert "unmerged: " not in summary(ours)


def test_patches_of_other_nodes_on_the_same_blocks_are_called(flux: Any) -> None:
    model, _, positive = flux
    calls: list[int] = []

    def around(given: dict[str, Any], others: dict[str, Any]) -> Any:
        calls.append(1)
        return others["original_block"](given)

    patched = model.clone()
    for kind in ("double_block", "single_block"):
        patched.set_model_patch_replace(around, "dit", kind, 1)
    merged = in_comfyui(accelerated(patched), positive)
    assert len(calls) == 2 * 6
    assert torch.equal(in_comfyui(accelerated(model), positive), merged)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75])
def test_the_node_equals_diffusers_if_both_round_rotations_alike(
    flux: Any, ratio: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfy.ldm.flux.math, "apply_rope", rotated_as_in_diffusers)
    model, source, positive = flux
    ours = in_comfyui(accelerated(model, ratio), positive, seed)
    theirs = in_diffusers(model, source, positive, tomadiff.ToMA(ratio, span="block"), seed)
    assert far(ours, theirs) < 1e-4


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("selector", [with_exact_ties, "strided"])
def test_as_it_is_comfyui_equals_diffusers_where_rounding_decides_nothing(
    flux: Any, ratio: float, selector: Any
) -> None:
    model, source, positive = flux
    method, patcher = tomadiff.ToMA(ratio, span="block", selector=selector), model.clone()
    Acceleration(method, guard=False).put_on(patcher)
    assert far(in_comfyui(patcher, positive), in_diffusers(model, source, positive, method)) < 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_as_it_is_only_ties_are_chosen_otherwise(flux: Any, ratio: float, seed: int) -> None:
    """All plans are equal up to the first with another choice, and there each region parts at a tie."""
    model, source, positive = flux
    noted, patcher = Noted(), model.clone()
    method = tomadiff.ToMA(ratio, span="block", selector=noted)
    Acceleration(method, guard=False).put_on(patcher)
    with noted.only() as ours:
        in_comfyui(patcher, positive, seed)
    with noted.only() as theirs:
        in_diffusers(model, source, positive, method, seed)
    assert len(ours) == len(theirs) > 0
    for (similarity, one), (other_similarity, other) in zip(ours, theirs, strict=True):
        assert (similarity - other_similarity).abs().max() < 1e-6
        differs = (one.indices != other.indices).any(1)
        for region in differs.nonzero().flatten():
            assert missed(similarity[region], one.indices[region], other.indices[region]) < 1e-6
        if differs.any():
            break  # from here on, tokens differ


def missed(similarity: Tensor, one: Tensor, other: Tensor) -> float:
    """How much less the second of two choices gains than the first, where they part."""
    part = int((one != other).nonzero()[0])
    values = similarity.double()
    best = values[:, one[:part]].amax(1) if part else torch.zeros(len(values), dtype=torch.float64)
    gains = (values[:, [one[part], other[part]]] - best[:, None]).clamp_min(0).sum(0)
    return float((gains[0] - gains[1]).abs())
