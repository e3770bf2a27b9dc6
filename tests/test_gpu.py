"""The contract in short, for people who have a GPU: ``pytest -m gpu``. Everything else is tested on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff
from tests import tiny
from tests.tiny import Tiny

pytestmark = pytest.mark.gpu

STEPS = 12  # destinations are renewed once, weights twice
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def build(name: str, dtype: torch.dtype = torch.float32) -> Tiny:
    drawer = tiny.build(name)
    drawer.pipe.to("cuda", dtype)
    return drawer


def draw(drawer: Tiny, **settings: Any) -> Tensor:
    return drawer.draw(num_inference_steps=STEPS, output_type="latent", **settings)


def state_of(model: Any) -> list[tuple[tuple[str, ...], int, int]]:
    """What a patch could leave behind."""
    return [(tuple(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


@pytest.fixture(autouse=True)
def _repeatable() -> Any:
    """Bit-exact claims need kernels that repeat themselves."""
    torch.compiler.reset()
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_apply_and_remove(name: str, dtype: torch.dtype) -> None:
    drawer = build(name, dtype)
    plain, state = draw(drawer), state_of(drawer.model)
    with tomadiff.apply(drawer.pipe, 0.5) as patch:
        merged = draw(drawer)
        (model,) = patch.report().models
    assert model.merged
    assert not model.bypassed
    assert merged.isfinite().all()
    assert not torch.equal(merged, plain)
    assert torch.equal(draw(drawer), plain)
    assert state_of(drawer.model) == state


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_ratio_zero_is_bit_exact(name: str) -> None:
    drawer = build(name)
    plain = draw(drawer)
    with tomadiff.apply(drawer.pipe, 0.0):
        assert torch.equal(draw(drawer), plain)


def test_plans_are_those_of_the_cpu() -> None:
    """Selection and weights are computed in float32 whatever the device."""
    tokens = torch.randn(2, 1024, 64)
    method, grid = tomadiff.ToMA(0.5), tomadiff.Grid(32, 32)
    here, there = method.plan(tokens, grid), method.plan(tokens.cuda(), grid)
    assert (here.destinations == there.destinations.cpu()).float().mean() > 0.99  # ties may fall either way
    torch.testing.assert_close(here.coverage, there.coverage.cpu(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["sdxl", "flux"])
def test_compiled_blocks(name: str) -> None:
    drawer = build(name)
    with tomadiff.apply(drawer.pipe, 0.5):
        merged = draw(drawer)
    drawer.model.compile_repeated_blocks(fullgraph=True)
    tomadiff.apply(drawer.pipe, 0.5)
    torch.testing.assert_close(draw(drawer), merged, rtol=0, atol=1e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_model(mode: str) -> None:
    """The second mode replays CUDA graphs, which overwrite what they returned before."""
    drawer = build("flux")
    with tomadiff.apply(drawer.pipe, 0.5):
        merged = draw(drawer)
    drawer.pipe.transformer = torch.compile(drawer.model, fullgraph=True, mode=mode)
    tomadiff.apply(drawer.pipe, 0.5)
    for _ in range(2):
        torch.testing.assert_close(draw(drawer), merged, rtol=0, atol=1e-2)


@pytest.mark.parametrize("first", ["tool first", "patch first"])
@pytest.mark.parametrize("tool", ["enable_model_cpu_offload", "enable_sequential_cpu_offload", "enable_group_offload"])
def test_offloading(tool: str, first: str) -> None:
    drawer = build("flux")
    with tomadiff.apply(drawer.pipe, 0.5):
        merged = draw(drawer)
    drawer = tiny.build("flux")
    if first == "patch first":
        tomadiff.apply(drawer.pipe, 0.5)
    where: dict[str, Any] = {"onload_device": torch.device("cuda"), "offload_type": "leaf_level"}
    getattr(drawer.pipe, tool)(**(where if tool == "enable_group_offload" else {}))
    if first == "tool first":
        tomadiff.apply(drawer.pipe, 0.5)
    for _ in range(2):
        torch.testing.assert_close(draw(drawer).cpu(), merged.cpu(), rtol=0, atol=1e-4)


def test_a_model_that_moves_between_devices() -> None:
    drawer = build("sdxl")
    with tomadiff.apply(drawer.pipe, 0.5):
        there = draw(drawer)
        drawer.pipe.to("cpu")
        draw(drawer)
        drawer.pipe.to("cuda")
        assert torch.equal(draw(drawer), there)


def test_no_memory_stays() -> None:
    drawer = build("sdxl")
    draw(drawer)
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        with tomadiff.apply(drawer.pipe, 0.5):
            draw(drawer)
    assert torch.cuda.memory_allocated() <= before + 2**16
