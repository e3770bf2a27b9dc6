"""The break-even guard: on machines that are made up so that it has something to decide, and on those that ship."""

from __future__ import annotations

import copy
import importlib.util
import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

import tomadiff
from tests import tiny
from tests.families.contract import sites
from tomadiff import Schedule, ToDo, ToMA, ToMeSD
from tomadiff import patch as patching
from tomadiff.cost import Hardware
from tomadiff.cost import guard as guarding
from tomadiff.cost.guard import Guard, Scale, Verdict
from tomadiff.evaluation.timing.architectures import build
from tomadiff.evaluation.timing.architectures import inputs as inputs_of
from tomadiff.merging.grid import _layout


def machine(launch: float = 0.0) -> Hardware:
    """A billion operations per second; bytes and the small products of merging are free."""
    return Hardware("made up", {torch.float32: 1e9}, 1e15, launch, {"batched": 1e6})


FAST_TO_ASK = machine()  # arithmetic is all that takes time: merging pays everywhere
SLOW_TO_ASK = machine(launch=1.0)  # asking is: merging asks more, so it pays nowhere
BETWEEN = machine(launch=7e-5)  # feed-forward is worth it, cross-attention is not; attention where tokens are many

SELDOM = Schedule(destinations_every=100, weights_every=100)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend to run on a machine; counts how often it is looked at."""

    def pretend(hardware: Hardware) -> list[int]:
        looks: list[int] = []

        def of(*_: Any) -> Hardware:
            looks.append(1)
            return hardware

        monkeypatch.setattr(Hardware, "of", of)
        return looks

    monkeypatch.setattr(guarding, "_BEFORE", 0)  # so that single sites decide, not what they share
    monkeypatch.setattr(guarding, "_AROUND", 8)  # whatever that is on a real one
    monkeypatch.setattr(guarding, "SLACK", 0.0)
    return pretend


@pytest.fixture
def unet() -> Any:
    return tiny.model("sd15")


def inputs(side: int = 16, timestep: int = 500, batch: int = 1) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(0)
    return {
        "sample": torch.randn(batch, 4, side, side, generator=noise),
        "timestep": timestep,
        "encoder_hidden_states": torch.randn(batch, 5, 32, generator=noise),
    }


def run(model: Any, **more: Any) -> Tensor:
    with torch.no_grad():
        return model(**inputs(**more)).sample


def merging(model: Any) -> dict[str, bool]:
    return {site.name: site.profitable and site.group.active for _, site in sites(model)}


# ---------------------------------------------------------------------------------------------- all, nothing, some
def test_where_merging_pays_it_is_as_if_there_were_no_guard(unet: Any, on: Any) -> None:
    on(FAST_TO_ASK)
    with tomadiff.apply(unet, ToMA.paper(0.5), guard=False):
        unguarded = run(unet)
    with tomadiff.apply(unet, ToMA.paper(0.5), guard=True) as patch:
        assert torch.equal(run(unet), unguarded)
        assert all(merging(unet).values())
        level = patch.report().models[0].levels[0]
        assert level.left_out == 0
        assert level.expected is not None
        assert level.expected > 1.5
        assert "guard: 21 of 21 sites merge; expected speed-up of these layers: 2." in patch.summary()
        assert "× on made up" in patch.summary()


def test_where_it_does_not_the_model_runs_as_it_was(unet: Any, on: Any, caplog: pytest.LogCaptureFixture) -> None:
    on(SLOW_TO_ASK)
    caplog.set_level(logging.WARNING, "tomadiff")
    plain = run(unet)
    with tomadiff.apply(unet, ToMA.paper(0.5), guard=True) as patch:
        for timestep in (500, 400, 300):
            assert torch.equal(run(unet, timestep=timestep), plain) == (timestep == 500)
        assert not any(merging(unet).values())
        assert [record.getMessage().count("guard=False") for record in caplog.records] == [1]
        report = patch.report().models[0]
        assert not report.merged
        assert [level.plans_made for level in report.levels] == [0, 0]
        assert [level.left_out for level in report.levels] == [level.sites for level in report.levels]
        assert (
            "nothing is merged: merging would not be faster here (guard=False merges all the same)" in patch.summary()
        )
        assert "guard: all sites of level 1 stay unmerged" in patch.summary()


def test_single_sites_are_left_out_and_plans_stay_the_same(unet: Any, on: Any) -> None:
    """Also if the site that renews the plan is one of them."""
    on(BETWEEN)
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=SELDOM, levels=(1,), guard=False) as patch:
        plain = run(unet)
        free = patch.plans()
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=SELDOM, levels=(1,), guard=True) as patch:
        some, plans = run(unet), patch.plans()
        kept = {name.rsplit(".", 1)[1]: merges for name, merges in merging(unet).items()}
        assert kept == {"attn1": False, "attn2": False, "ff": True}
        assert any(site.first_in_group and not site.profitable for _, site in sites(unet))
        assert torch.equal(plans["level 1"].merge_matrix, free["level 1"].merge_matrix)
        assert "guard: 8 of 12 sites of level 1 stay unmerged" in patch.summary()
    assert not torch.equal(some, plain)


def test_a_small_loss_of_a_site_is_within_the_slack(unet: Any, on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention on 64 tokens would lose some 3 % here, cross-attention nearly all."""
    on(BETWEEN)
    monkeypatch.setattr(guarding, "SLACK", 0.05)
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=SELDOM, levels=(1,), guard=True):
        run(unet)
        kept = {name.rsplit(".", 1)[1]: merges for name, merges in merging(unet).items()}
    assert kept == {"attn1": True, "attn2": False, "ff": True}


def test_levels_are_left_out_on_their_own(unet: Any, on: Any) -> None:
    """A quarter of the tokens, a sixteenth of the pairs: there attention saves less than it takes to ask."""
    on(machine(launch=1e-3))
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=SELDOM, guard=True) as patch:
        run(unet, side=32)
        fine, coarse = patch.report().models[0].levels
    assert (fine.left_out, coarse.left_out) == (6, coarse.sites)  # of the finer one, attention alone merges
    assert fine.tokens_after == 512
    assert coarse.tokens_after is None


# ---------------------------------------------------------------------------------------------- when it decides
def test_it_decides_once_for_each_size(unet: Any, on: Any) -> None:
    looks = on(BETWEEN)
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=SELDOM, guard=True):
        run(unet)
        first, decided = merging(unet), len(looks)
        on(SLOW_TO_ASK)  # whatever happens to the machine meanwhile
        for timestep in (400, 300, 200):
            run(unet, timestep=timestep)
            assert merging(unet) == first
        run(unet, side=8)
        assert merging(unet) != first
        run(unet)
        assert merging(unet) == first
    assert decided == len(looks) == 2  # one per group


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"speedup": 1.05}, marks=pytest.mark.slow)], ids=["ratio", "speedup"]
)
def test_an_estimate_does_not_depend_on_what_ran_before(settings: dict[str, Any], unet: Any, on: Any) -> None:
    """Layouts of regions are made once for each size and kept; the process that makes them must not pay for them."""
    on(machine(launch=1e-5))
    found = []
    for forgets in (True, False):
        if forgets:
            _layout.cache_clear()
        with tomadiff.apply(unet, ToMA.paper(), guard=True, **settings) as patch:
            run(unet)
            found.append((patch._models[0].policy.guard.verdicts, patch.choices))
    assert found[0] == found[1]


def test_a_ratio_of_the_schedule_has_its_own_verdict(unet: Any, on: Any) -> None:
    on(BETWEEN)
    with tomadiff.apply(unet, ToMA.paper(0.05), schedule=Schedule(ratio_at_level={0: 0.75}), guard=True):
        run(unet)
        assert any(merging(unet).values())
    with tomadiff.apply(unet, ToMA.paper(0.05), guard=True):
        run(unet)
        assert not any(merging(unet).values())


def test_settings_change_it(unet: Any, on: Any) -> None:
    on(SLOW_TO_ASK)
    patch = tomadiff.apply(unet, ToMA.paper(0.5), guard=True)
    run(unet)
    assert not any(merging(unet).values())
    patch.set(guard=False)
    run(unet)
    assert all(merging(unet).values())
    patch.set(ratio=0.25)
    run(unet)
    assert all(merging(unet).values()), "it stays off"
    patch.remove()


def test_it_is_on_unless_told_otherwise(unet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests turn it off for themselves, in conftest.py."""
    assert not tomadiff.apply(unet, 0.5).guard
    spec = patching.__spec__
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh.GUARD
    monkeypatch.setattr(patching, "GUARD", True)
    assert tomadiff.apply(unet, 0.5).guard
    assert not tomadiff.apply(unet, ToMA.paper(0.5), guard=False).guard


# ---------------------------------------------------------------------------------------------- where nothing runs
def test_nothing_is_decided_where_nothing_is_computed(on: Any) -> None:
    looks = on(SLOW_TO_ASK)
    model = tiny.model("sd15").to("meta")
    given = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in inputs().items()}
    with tomadiff.apply(model, ToMA.paper(0.5), guard=True) as patch, torch.no_grad():
        patch.step(0)
        model(**given)
        assert all(merging(model).values())
    with FakeTensorMode():
        image = torch.zeros(1, 4, 8, 8)
    assert Scale.of(image, None, torch.float32, False) is None
    assert not looks


def test_a_size_is_read_off_a_call() -> None:
    scale = Scale.of(torch.zeros(2, 4, 8, 8), torch.zeros(2, 77, 16), torch.float16, True)
    assert scale == Scale(2, 77, torch.float16, torch.device("cpu"), True, torch.get_num_threads())


def test_other_threads_are_another_machine(unet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever goes back to the first number decides as before."""
    monkeypatch.setattr(Hardware, "of", lambda *given: {1: FAST_TO_ASK, 2: SLOW_TO_ASK}[given[2]])
    merged = []
    with tomadiff.apply(unet, ToMA.paper(0.5), guard=True):
        for threads in (1, 2, 1):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            run(unet)
            merged.append(any(merging(unet).values()))
    assert merged == [True, False, True]


# ---------------------------------------------------------------------------------------------- the machines that ship
def decided(arch: str, size: int, ratio: float, threads: int = 2) -> Guard:
    """What is decided for a published architecture on a CPU, from its shapes alone."""
    model = build(arch, "meta")
    scale = Scale(1, 77, torch.float32, torch.device("cpu"), True, threads)
    with tomadiff.apply(model, ToMA.tile(ratio, skip=0), guard=False) as patch, torch.no_grad():
        patch.step(0)
        model(**inputs_of(arch, size, "meta"))
        (patched,) = patch._models
        guard = Guard(patched.family, patched.sites)
        for group in patched.groups:
            guard.admits(group, scale)
    return guard


def left_out(guard: Guard) -> int:
    return sum(verdict.left_out for verdict in guard.verdicts.values())


def test_where_merging_was_faster_every_site_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and lowest of benchmarks/results/guard.csv: 1.04 times as fast, measured."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    guard = decided("sd15", 256, 0.1)
    assert left_out(guard) == 0
    assert guard.describe().startswith("48 of 48 sites merge; expected speed-up of these layers: 1.1")
    assert guard.describe().endswith("CPU, AVX512, 2 threads (constants of tomadiff, fitted on an AMD EPYC)")


@pytest.mark.slow
@pytest.mark.parametrize("size", [256, 384, 512, 768, 1024])
def test_so_they_do_in_sdxl(size: int) -> None:
    assert left_out(decided("sdxl", size, 0.1)) == 0


def test_tiny_models_are_left_alone(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA(0.25), guard=True) as patch:
        run(unet)
        assert not any(merging(unet).values())
        assert "guard: 0 of 21 sites merge; expected speed-up of these layers: 1.00× on" in patch.summary()


# ---------------------------------------------------------------------------------------------- every family
@pytest.mark.parametrize(
    "method",
    [ToMA.tile(skip=0), ToMA.once(skip=0), ToMeSD(skip=0), ToDo(skip=0), ToMA(skip=0, scope="block")],
    ids=["op", "block", "tomesd", "todo", "fresh"],
)
@pytest.mark.parametrize("name", ["sdxl", "flux", "sd3", "pixart", "wan"])
def test_every_site_of_every_family_is_judged(name: str, method: Any, on: Any) -> None:
    if name == "wan" and isinstance(method, ToDo):
        pytest.skip("ToDo does not know Wan")
    drawer = tiny.build(name)
    for hardware, expected in ((FAST_TO_ASK, True), (SLOW_TO_ASK, False)):
        on(hardware)
        with tomadiff.apply(drawer.pipe, method, guard=True) as patch:
            drawer.draw(num_inference_steps=1, output_type="latent")
            assert set(merging(drawer.model).values()) == {expected}
            assert all(level.expected is not None for level in patch.report().models[0].levels)


def test_a_slot_with_nothing_to_judge_by_merges() -> None:
    assert Verdict((True,), 0.0, 1.0).admits
    assert Verdict((True,), 0.0, 1.0).left_out == 0


def test_a_copied_model_decides_for_itself(unet: Any, on: Any) -> None:
    on(BETWEEN)
    with tomadiff.apply(unet, ToMA.paper(0.5), guard=True):
        run(unet)
        twin = copy.deepcopy(unet)
        on(SLOW_TO_ASK)
        run(twin, side=8)
        assert not any(merging(twin).values())
        assert any(merging(unet).values())
    tomadiff.remove(twin)


# ---------------------------------------------------------------------------------------------- compiled
@pytest.mark.slow
def test_compiled_blocks_keep_their_graphs(on: Any) -> None:
    """Some sites merge and some do not: nothing compiles anew after the first step, and nothing breaks."""
    on(machine(launch=5e-5))
    torch.compiler.reset()
    counters.clear()
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(1)
        return graph.forward

    model = tiny.model("sd15")
    with tomadiff.apply(model, ToMA.paper(0.5), schedule=Schedule(5, 5), levels=(1,), guard=True) as patch:
        eager = [run(model, timestep=500 - 20 * step) for step in range(12)]
        assert len(set(merging(model).values())) == 2
        patch.begin()
        model._repeated_blocks = ["BasicTransformerBlock"]
        model.compile_repeated_blocks(fullgraph=True, backend=backend)
        made = []
        for step in range(12):
            torch.testing.assert_close(run(model, timestep=500 - 20 * step), eager[step], rtol=0, atol=1e-5)
            made.append(len(graphs))
    assert made == made[:1] * 12
    assert not counters["graph_break"]
    torch.compiler.reset()
