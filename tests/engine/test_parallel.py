"""One image in several processes is the image of one process, or an error comes before anything is computed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing

import tomadiff
from tests import tiny
from tomadiff import Grid, Schedule, ToMA, ToMeSD
from tomadiff.engine.parallel import own_part
from tomadiff.errors import PatchError
from tomadiff.merging.grid import Stripes, Tiles, Whole


# ---------------------------------------------------------------------------------------------- parts of a grid
@pytest.mark.parametrize(
    ("grid", "method"),
    [
        (Grid(16, 12), ToMA(0.5)),
        (Grid(16, 12), ToMA(0.5, regions=Stripes(16), unmerge="transpose")),
        (Grid(16, 10), ToMA(0.5, regions=Tiles(4))),  # tiles of unequal width
        (Grid(6, 6, frames=4), ToMA(0.5, regions=Tiles(3))),
    ],
)
def test_plans_of_the_parts_are_the_parts_of_the_plan(grid: Grid, method: ToMA) -> None:
    tokens = torch.randn(2, grid.tokens, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, part = method.plan(tokens, grid), own_part(grid, method, 2)
    assert 2 * part.tokens == grid.tokens
    halves = [method.plan(half, part) for half in tokens.chunk(2, dim=1)]
    merged = [plan.merge(half) for plan, half in zip(halves, tokens.chunk(2, dim=1), strict=True)]
    near = {"atol": 1e-5, "rtol": 1e-5}  # weights are computed in float32
    torch.testing.assert_close(torch.cat(merged, dim=1), whole.merge(tokens), **near)
    back = [plan.unmerge(half) for plan, half in zip(halves, merged, strict=True)]
    torch.testing.assert_close(torch.cat(back, dim=1), whole.unmerge(whole.merge(tokens)), **near)


@pytest.mark.parametrize(
    ("grid", "method", "tail"),
    [
        (Grid(16, 16), ToMA(0.5, regions=Whole()), 0),
        (Grid(16, 16), ToMA.whole(0.5), 0),
        (Grid(16, 16), ToMA(0.5, quota="shared"), 0),
        (Grid(16, 16), ToMA(0.5, selector="random"), 0),
        (Grid(16, 16), ToMeSD(0.5), 0),
        (Grid(16, 16), ToMA(0.5), 256),
        (Grid(15, 16), ToMA(0.5), 0),
        (Grid(12, 16), ToMA(0.5), 0),  # 6 rows each, in tiles of 4
        (Grid(8, 8, frames=3), ToMA(0.5), 0),
    ],
)
def test_what_cannot_be_split_is_refused(grid: Grid, method: Any, tail: int) -> None:
    with pytest.raises(PatchError, match="remove the patch"):
        own_part(grid, method, 2, tail)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("method", [ToMA.whole(0.5), ToMA(0.5)])  # Flux takes shared quotas by default
def test_the_error_comes_before_anything_is_computed(method: ToMA, first: bool) -> None:
    """Whether the model was patched first or split first."""
    model = tiny.model("flux")
    config = SimpleNamespace(context_parallel_config=SimpleNamespace(ring_degree=2, ulysses_degree=1))
    model._parallel_config = None if first else config
    tomadiff.apply(model, method, guard=False)
    model._parallel_config = config
    computed: list[int] = []
    model.x_embedder.register_forward_hook(lambda *_: computed.append(1))
    with pytest.raises(PatchError, match=r"Context parallelism .* quota='equal'"):
        model(**flux_inputs())
    assert not computed


# ---------------------------------------------------------------------------------------------- two processes
def flux_inputs() -> dict[str, Any]:
    dice = torch.Generator().manual_seed(0)
    places = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"), dim=-1).reshape(-1, 2)
    return {
        "hidden_states": torch.randn(1, 256, 16, generator=dice, dtype=torch.float64),
        "encoder_hidden_states": torch.randn(1, 12, tiny.WIDTH, generator=dice, dtype=torch.float64),
        "pooled_projections": torch.randn(1, tiny.WIDTH, generator=dice, dtype=torch.float64),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": torch.cat([torch.zeros(256, 1), places], dim=1),
        "txt_ids": torch.zeros(12, 3),
        "return_dict": False,
    }


def wan_inputs() -> dict[str, Any]:
    dice = torch.Generator().manual_seed(0)
    return {
        "hidden_states": torch.randn(1, 16, 2, 16, 16, generator=dice, dtype=torch.float64),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 12, tiny.WIDTH, generator=dice, dtype=torch.float64),
        "return_dict": False,
    }


INPUTS = {"flux": flux_inputs, "wan": wan_inputs}


def run(family: str, merge: bool, **degrees: int) -> Tensor:
    """What a model gives; in float64, where rounding flips no choice."""
    from diffusers import ContextParallelConfig

    model = tiny.model(family).double()
    if degrees:
        model.enable_parallelism(config=ContextParallelConfig(**degrees))
    if merge:
        patch = tomadiff.apply(model, 0.5, quota="equal", proportional=False, guard=False)
    with torch.no_grad():
        output: Tensor = model(**INPUTS[family]())[0]
    if merge:
        assert patch.report().models[0].merged
        assert not patch.report().models[0].bypassed
    return output


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store, patience = f"file://{folder}/store", timedelta(minutes=5)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=patience)
    torch.accelerator.device_count = lambda: 1  # diffusers divides by it, and a CPU counts none
    for family in INPUTS:
        alone, apart = run(family, merge=False), run(family, merge=False, ulysses_degree=2)
        torch.testing.assert_close(apart, alone)  # or diffusers' own parallelism would be in doubt
        merged = run(family, merge=True)
        assert not torch.allclose(merged, alone)
        torch.testing.assert_close(run(family, merge=True, ulysses_degree=2), merged)
    with pytest.raises(ValueError, match="return_lse"):  # ring attention has no CPU backend in diffusers
        run("flux", merge=True, ring_degree=2)
    _forecasts_are_decided_together(rank, folder)
    _every_process_its_own_image(rank)
    distributed.destroy_process_group()


def _every_process_its_own_image(rank: int) -> None:
    """As under ``accelerate launch``: wrapped for data parallelism, images are those of one process."""
    one = tiny.build("sdxl")
    tomadiff.apply(one.pipe, ToMA.paper(0.5), schedule=Schedule(2, 1, start=0.3), guard=False)
    expected, unet = one.draw(seed=rank), one.model
    wrapped = torch.nn.parallel.DistributedDataParallel(unet)
    wrapped.config, wrapped.add_embedding, wrapped.dtype = unet.config, unet.add_embedding, unet.dtype
    one.pipe.unet = wrapped
    assert torch.equal(one.draw(seed=rank), expected)


def _forecasts_are_decided_together(rank: int, folder: str) -> None:
    """The times that the processes are told differ, so they would not decide alike."""
    from diffusers import ContextParallelConfig

    model, inputs = tiny.model("wan").double(), wan_inputs()
    model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
    with tomadiff.apply(model, forecast=0.3) as patch, torch.no_grad():
        patch.begin(steps=12)
        for step in range(12):
            patch.step(step)
            model(**{**inputs, "timestep": torch.tensor([900 - (5 + 60 * rank) * step])})
        part = patch._forecasts.parts[0]
        assert distributed.get_world_size(part._forecaster.group) == 2
        assert patch.pattern.forecast
        computed: list[Any] = [None, None]
        distributed.all_gather_object(computed, patch.pattern.computed)
    assert computed[0] == computed[1]


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)
