"""Which of the two ways is taken, and what is said when one is closed. Nothing here runs a kernel."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tomadiff import Grid, Tiles, ToMA, Whole, kernels
from tomadiff.errors import SettingError

GRID = Grid(7, 9)


def test_tomadiff_does_without_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None  # importing it fails
import tomadiff, torch
assert tomadiff.ToMA.tile(0.5).plan(torch.randn(1, 16, 4), tomadiff.Grid(4, 4)).kept == 8
assert not any(name.startswith("tomadiff.kernels.programs") for name in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_cpu_has_no_kernels_and_auto_needs_none() -> None:
    assert not kernels.available("cpu")
    assert not kernels.fused("auto", torch.device("cpu"), torch.float32, 16)
    assert not ToMA.tile(0.5).plan(torch.randn(1, 63, 4), GRID).fused


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (9, 0)])
def test_a_gpu_has_them_if_it_is_new_enough(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert kernels.available("cuda") == (capability >= (8, 0))


def test_auto_leaves_to_torch_what_kernels_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_obstacle", lambda device: None)
    device = torch.device("cuda")
    assert kernels.fused("auto", device, torch.float16, 256)
    assert not kernels.fused("torch", device, torch.float16, 256)
    assert not kernels.fused("auto", device, torch.float64, 16)
    assert not kernels.fused("auto", device, torch.float16, 257)
    assert not kernels.fused("auto", device, torch.float16, 16, missing="unmerge='x'")


def test_insisting_without_triton_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'tomadiff\[triton\]'"):
        kernels.fused("triton", torch.device("cuda"), torch.float32, 16)


def test_insisting_where_they_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(SettingError, match="on 'cpu'; kernels run on a GPU"):
        ToMA.tile(0.5, kernels="triton").plan(torch.randn(1, 63, 4), GRID)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(SettingError, match="older than compute capability 8"):
        kernels.fused("triton", torch.device("cuda"), torch.float32, 16)
    monkeypatch.setattr(kernels, "_obstacle", lambda device: None)
    with pytest.raises(SettingError, match="at most 256"):
        kernels.fused("triton", torch.device("cuda"), torch.float32, 1024)
    with pytest.raises(SettingError, match="kernels take float32, float16 and bfloat16"):
        kernels.fused("triton", torch.device("cuda"), torch.float64, 16)


@pytest.mark.parametrize("setting", [{"selector": "random"}, {"unmerge": "pseudo-inverse"}], ids=lambda item: str(item))
def test_insisting_on_kernels_that_do_not_exist_is_refused_at_once(setting: dict[str, str]) -> None:
    assert ToMA.tile(0.5, **setting).kernels == "auto"  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="There is no kernel for"):
        ToMA.tile(0.5, kernels="triton", **setting)  # type: ignore[arg-type]


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(SettingError, match="choose one of 'auto', 'triton', 'torch'"):
        ToMA.tile(0.5, kernels="cuda")  # type: ignore[arg-type]


def test_regions_without_a_kernel_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_obstacle", lambda device: None)
    with pytest.raises(SettingError, match="no kernel for plans in regions of more than 64 tokens"):
        ToMA(0.5, regions=Tiles(9), kernels="triton").plan(torch.randn(1, 81, 4), Grid(9, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_whole_way_through_kernels_has_the_shapes_of_plain_torch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    tokens = torch.randn(2, 63, 4).to(dtype)
    plain = ToMA.tile(0.5, regions=Tiles(4), kernels="torch").plan(tokens, GRID)
    Tiles(4).layout(GRID)  # made of real tensors before fake ones reign, and remembered
    monkeypatch.setattr(kernels, "_obstacle", lambda device: None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(2, 63, 4, dtype=dtype)
        plan = ToMA.tile(0.5, regions=Tiles(4), kernels="triton").plan(fake, GRID)
        assert plan.fused
        assert plan.fits(plain)
        merged = plan.merge(fake)
        assert (merged.shape, merged.dtype) == ((2, plain.kept, 4), dtype)
        for restored in (plan.unmerge(merged), plan.unmerge_add(merged, fake)):
            assert (restored.shape, restored.dtype) == (fake.shape, dtype)


def test_a_residual_means_the_same_in_plain_torch() -> None:
    tokens = torch.randn(2, 63, 4)
    plan = ToMA.tile(0.5).plan(tokens, GRID)
    merged = plan.merge(tokens)
    assert torch.equal(plan.unmerge_add(merged, tokens), tokens + plan.unmerge(merged))


def test_a_plan_that_moves_to_another_kind_of_device_leaves_its_kernels_behind() -> None:
    plan = ToMA.tile(0.5).plan(torch.randn(1, 63, 4), GRID)
    plan.fused = True
    assert plan.to(dtype=torch.float16).fused
    assert not plan.to("meta").fused


def test_our_defaults_have_kernels_but_not_across_regions() -> None:
    assert ToMA(0.5, kernels="triton").kernels == "triton"
    with pytest.raises(SettingError, match="no kernel for attention_regions"):
        ToMA(0.5, kernels="triton", attention_regions=Whole())


def test_the_meta_device_stands_for_a_gpu_only_if_told() -> None:
    meta = torch.device("meta")
    assert not kernels.fused("auto", meta, torch.float16, 16)
    with kernels.assumed():
        assert kernels.fused("auto", meta, torch.float16, 16)
        assert not kernels.fused("torch", meta, torch.float16, 16)
        assert not kernels.fused("auto", torch.device("cpu"), torch.float16, 16)
    with kernels.assumed(False):
        assert not kernels.fused("auto", meta, torch.float16, 16)
