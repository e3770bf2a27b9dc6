"""Flux merges in ComfyUI as in diffusers.

Both rotate queries and keys in float32, and round differently: ComfyUI multiplies and adds at once. That is 1e-7 of a
similarity, which decides nothing as long as gains that are nearly equal are ties.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff

from . import host as host
from . import reference, tiny
from .test_merging import accelerated, far, flux, sigmas_of, summary

_FIXTURES = flux  # used by its name


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


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75])
def test_the_node_equals_diffusers(flux: Any, ratio: float, seed: int) -> None:
    model, source, positive = flux
    ours = in_comfyui(accelerated(model, ratio), positive, seed)
    theirs = in_diffusers(model, source, positive, tomadiff.ToMA(ratio, span="block"), seed)
    assert far(ours, theirs) < 1e-4
