"""Tokens that lie tile by tile inside a UNet's transformers: the same pictures with fewer copies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tomadiff
from tests import tiny
from tomadiff import Grid, Stripes, Tiles, ToMA, kernels
from tomadiff.engine.hooks import DATA
from tomadiff.families import unet as adapter

SIDE = 32  # latent pixels: tiles of four divide every grid of the tiny UNet


@pytest.fixture
def unet() -> nn.Module:
    return tiny.model("sdxl")


def run(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sample, text, pooled = (torch.randn(2, *size, generator=generator) for size in ((4, SIDE, SIDE), (8, 64), (32,)))
    added = {"text_embeds": pooled, "time_ids": torch.ones(2, 6)}
    with torch.no_grad():
        result: Tensor = model(sample, 500, text, added_cond_kwargs=added, return_dict=False)[0]
    return result


def orders(model: nn.Module) -> set[bool]:
    """Whether the groups of a patched model expect tokens tile by tile."""
    groups = {site.group for module in model.modules() if (site := module.__dict__.get(DATA)) is not None}
    return {group.order is not None for group in groups if group.active}


@pytest.fixture
def raster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switches arranging off: what the result must be equal to."""

    def switch() -> None:
        monkeypatch.setattr(tomadiff.engine.model.TokenReorder, "fits", staticmethod(lambda _: False))

    return switch


@pytest.mark.parametrize(
    "method",
    [
        ToMA(0.5),
        ToMA(0.5, span="block"),
        ToMA.tile(0.5),
        ToMA.tile(0.5, scope="block"),
        ToMA.tile(0.5, span="block"),
        ToMA.tile(0.5, plans_from="block"),
        ToMA.tile(0.25, skip=1),
    ],
    ids=lambda method: f"{method.unmerge}-{method.scope}-{method.span}-{method.plans_from}-{method.skip}",
)
def test_the_order_inside_changes_nothing(unet: nn.Module, method: ToMA, raster: Any) -> None:
    with tomadiff.apply(unet, method):
        arranged = run(unet)
        assert orders(unet) == {True}
    raster()
    with tomadiff.apply(unet, method):
        assert torch.allclose(run(unet), arranged, atol=1e-5)
        assert orders(unet) == {False}


@pytest.mark.parametrize(
    "method", [ToMA.stripe(0.5), ToMA.tile(0.5, regions=Tiles(6)), ToMA.tile(0.5, regions=Stripes(count=8))]
)
def test_regions_without_an_order_of_their_own_stay_in_raster_order(unet: nn.Module, method: ToMA) -> None:
    with tomadiff.apply(unet, method):
        run(unet)
        assert orders(unet) == {False}


def test_kernels_read_tokens_where_they_lie() -> None:
    grid, meta = Grid(8, 8), torch.device("meta")
    with kernels.assumed():
        assert ToMA(0.5).token_order(grid, meta, torch.float16) is None
        assert ToMA(0.5, kernels="torch").token_order(grid, meta, torch.float16) is not None
        assert ToMA(0.5).token_order(grid, meta, torch.float64) is not None  # there is no kernel
    assert ToMA(0.5).token_order(grid, meta, torch.float16) is not None


def test_masks_and_unknown_attention_keep_raster_order(unet: nn.Module) -> None:
    class Mine(type(next(iter(unet.attn_processors.values())))):  # type: ignore[misc,operator]
        pass

    with tomadiff.apply(unet, 0.5) as patch:
        run(unet)
        assert orders(unet) == {True}
        first = dict(patch.plans())
        masks = {"ip_adapter_masks": [torch.ones(1)]}
        assert adapter.order_matters(unet, {"attention_mask": None, "cross_attention_kwargs": masks})  # type: ignore[arg-type]
        unet.set_attn_processor(Mine())
        patch.begin()
        run(unet)
        assert orders(unet) == {False}
        assert all(torch.equal(plan.destinations, first[name].destinations) for name, plan in patch.plans().items())


def test_an_error_inside_leaves_no_order_behind(unet: nn.Module) -> None:
    plain = run(unet)
    block = next(module for module in unet.modules() if type(module).__name__ == "BasicTransformerBlock")
    handle = block.register_forward_hook(lambda *_: 1 / 0)  # type: ignore[arg-type]
    patch = tomadiff.apply(unet, 0.5)
    with pytest.raises(ZeroDivisionError):
        run(unet)
    handle.remove()
    patch.remove()
    assert torch.equal(run(unet), plain)


class Copies(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def copies(model: nn.Module) -> int:
    """Copies of a step that plans nothing."""
    with tomadiff.apply(model, ToMA.tile(0.5)) as patch:
        patch.begin(steps=3)
        patch.step(0)
        run(model)
        patch.step(1)
        with Copies() as seen:
            run(model)
    return seen.counts["clone"] + seen.counts["copy_"] + seen.counts["index_select"]


def test_there_are_fewer_copies(unet: nn.Module, raster: Any) -> None:
    arranged = copies(unet)
    raster()
    ops = 3 * sum(type(module).__name__ == "BasicTransformerBlock" for module in unet.modules())
    stacks = sum(type(module).__name__ == "Transformer2DModel" for module in unet.modules())
    assert copies(unet) - arranged == 2 * ops - 2 * stacks
