"""What merging costs in memory, and that nothing of it stays behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tomadiff
from tests import tiny
from tests.families.contract import sites, traces
from tomadiff import ToMA


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that come into being, and of those that are gone again."""

    def __init__(self, *known: Any) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._held: dict[int, Any] = {}
        for tensor in tree_leaves(known):
            if isinstance(tensor, Tensor):
                self._held[tensor.untyped_storage()._cdata] = tensor  # there before: never counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self._held:
                self._count(leaf.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def forget(_: Any) -> None:
            del self._held[key]
            self.now -= size

        self._held[key] = weakref.ref(storage, forget)
        self.now += size


def test_live_bytes_counts_what_is_alive() -> None:
    given = torch.zeros(100)
    with LiveBytes(given) as live:
        one = given + 1
        view = one.view(10, 10)
        two = view * 2
        del one, two
        del view
        three = given.t() + given
    assert (live.now, live.peak) == (400, 800)
    del three
    assert live.now == 0


def mid_size_unet() -> tuple[nn.Module, dict[str, Any]]:
    """Levels and depths of SDXL, 64×64 latents."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(32, 64, 128),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=2,
        transformer_layers_per_block=(1, 2, 4),
        attention_head_dim=(2, 4, 8),
        norm_num_groups=8,
        use_linear_projection=True,
        cross_attention_dim=64,
    ).eval()
    sample, text = torch.randn(2, 4, 64, 64), torch.randn(2, 16, 64)
    return unet, {"sample": sample, "timestep": torch.tensor(500), "encoder_hidden_states": text}


def mid_size_flux() -> tuple[nn.Module, dict[str, Any]]:
    """1024 tokens, width 128."""
    torch.manual_seed(0)
    flux = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(8, 12, 12),
    ).eval()
    ids = torch.tensor([(0, row, column) for row in range(32) for column in range(32)]).float()
    return flux, {
        "hidden_states": torch.randn(1, 1024, 16),
        "encoder_hidden_states": torch.randn(1, 32, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": ids,
        "txt_ids": torch.zeros(32, 3),
    }


def peak(model: nn.Module, inputs: dict[str, Any]) -> int:
    with torch.no_grad(), LiveBytes(list(model.parameters()), list(model.buffers()), inputs) as live:
        model(**inputs)
    return live.peak


@pytest.mark.parametrize("span", ["op", "block"])
@pytest.mark.parametrize(("build", "share"), [(mid_size_unet, 0.95), (mid_size_flux, 0.9)])
def test_peak_of_live_bytes_is_below_the_unpatched_one(build: Callable[..., Any], share: float, span: Any) -> None:
    """Plans included; on the step that makes them and on one that reuses them."""
    model, inputs = build()
    plain = peak(model, inputs)
    with tomadiff.apply(model, ToMA.tile(0.5, span=span)):
        planning, reusing = peak(model, inputs), peak(model, {**inputs, "timestep": inputs["timestep"] * 0.9})
    assert planning < share * plain
    assert reusing < share * plain


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())  # isinstance would wake lazy proxies


@pytest.mark.parametrize("cycles", [15, pytest.param(500, marks=pytest.mark.slow)])
def test_many_cycles_leave_nothing(cycles: int) -> None:
    model = tiny.build("pixart").model  # the quickest to run
    inputs = {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "encoder_hidden_states": torch.randn(1, 2, 32),
        "timestep": torch.tensor([1]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }

    def cycle() -> None:
        patch = tomadiff.apply(model, 0.5)
        model(**inputs)
        patch.remove()

    with torch.no_grad():
        cycle()
        before, tensors = traces(model), live_tensors()
        for _ in range(cycles):
            cycle()
    assert traces(model) == before
    assert live_tensors() <= tensors


def test_a_removed_patch_holds_no_tensors_but_still_reports() -> None:
    model = tiny.build("sd15").model
    inputs = {"sample": torch.randn(1, 4, 8, 8), "timestep": 1, "encoder_hidden_states": torch.randn(1, 2, 32)}
    patch = tomadiff.apply(model, 0.5)
    with torch.no_grad():
        model(**inputs)
    held = [weakref.ref(tensor) for _, site in sites(model) for tensor in site.group.plan.state]
    assert all(reference() is not None for reference in held)
    patch.remove()
    gc.collect()
    assert all(reference() is None for reference in held)
    level = patch.report().models[0].levels[0]
    assert (level.tokens_before, level.tokens_after, level.plans_made, level.bytes_held) == (64, 32, 1, 0)


def test_two_pipelines_in_two_threads_draw_what_they_draw_alone() -> None:
    names = ("sdxl", "flux")

    def draw(name: str) -> Tensor:
        one = tiny.build(name)
        with tomadiff.apply(one.pipe, 0.5):
            return torch.stack([one.draw(seed) for seed in range(3)])

    torch.manual_seed(0)
    alone = [draw(name) for name in names]
    pipes = [tiny.build(name) for name in names]
    patches = [tomadiff.apply(one.pipe, 0.5) for one in pipes]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda one: torch.stack([one.draw(seed) for seed in range(3)]), pipes))
    for patch in patches:
        patch.remove()
    for expected, drawn in zip(alone, together, strict=True):
        assert torch.equal(expected, drawn)
