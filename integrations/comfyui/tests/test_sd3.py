"""Stable Diffusion 3 merges in ComfyUI as in diffusers."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

import tomadiff

from . import host as host
from . import reference, tiny
from .test_merging import accelerated, far, sigmas_of, summary


@pytest.fixture(scope="module")
def sd3() -> tuple[Any, Any, list[Any]]:
    torch.manual_seed(0)
    source = diffusers.SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=64,
        num_attention_heads=2, caption_projection_dim=128, joint_attention_dim=32, pooled_projection_dim=32,
        pos_embed_max_size=32, qk_norm="rms_norm", dual_attention_layers=(0,),
    ).eval().double()  # fmt: skip
    model = tiny.sd3(source)
    return model, source, tiny.text(model, 1, 32)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75])
def test_sd3_equals_diffusers(sd3: Any, ratio: float) -> None:
    model, source, positive = sd3
    ours = tiny.sample(accelerated(model, ratio), positive, positive, cfg=1.0)
    with tomadiff.apply(source, tomadiff.ToMA(ratio, span="block"), guard=False) as patch:
        predict = reference.sd3(model, source, positive)
        theirs = reference.euler(model, predict, sigmas_of(model), patch, (1, 4, 32, 32))
    assert far(ours, theirs) < 1e-4


def test_patches_of_other_nodes_are_called(sd3: Any) -> None:
    """Those that leave out a block, as skip-layer guidance does, and those that go around one."""
    model, _, positive = sd3
    calls: list[int] = []

    def around(given: dict[str, Any], others: dict[str, Any]) -> Any:
        calls.append(1)
        return others["original_block"](given)

    patched = model.clone()
    patched.set_model_patch_replace(around, "dit", "double_block", 0)
    ours = accelerated(patched, 0.5)
    merged = tiny.sample(ours, positive, positive, cfg=1.0)
    assert len(calls) == 6
    assert "unmerged: " not in summary(ours)
    assert torch.equal(tiny.sample(accelerated(model, 0.5), positive, positive, cfg=1.0), merged)
