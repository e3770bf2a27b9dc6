"""Counting and predicting: hand-worked numbers, and shapes that must agree with what real modules do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tomadiff
from tests import tiny
from tomadiff import Grid, ToMA, kernels
from tomadiff.cost import GPUS, KINDS, PARTS, Cost, Hardware, Op, Trace, cost_of, formulas, trace
from tomadiff.cost.fit import fitted
from tomadiff.cost.op import LARGE
from tomadiff.cost.work import Work, work_of
from tomadiff.errors import SettingError
from tomadiff.evaluation.timing.architectures import build, inputs
from tomadiff.evaluation.timing.prediction import window
from tomadiff.families.registry import family_of

PLAIN = Hardware("a machine of round numbers", {torch.float32: 1000.0}, bandwidth=100.0, launch=0.5)


def kinds(call: Any) -> Counter[str]:
    return Counter(op.kind for op in trace(call).ops.elements())


# ---------------------------------------------------------------------------------------------- counting
def test_operations_of_products_and_of_attention() -> None:
    tokens, layer = torch.randn(1, 2, 64, 16), nn.Linear(8, 4)
    assert cost_of(lambda: F.scaled_dot_product_attention(tokens, tokens, tokens)).flops == 4 * 2 * 64 * 64 * 16
    assert cost_of(lambda: layer(torch.ones(3, 8))).flops == 2 * 3 * 8 * 4


def test_views_launch_nothing_and_bytes_are_freed() -> None:
    given = torch.zeros(100)

    def call() -> None:
        one = given + 1
        view = one.view(10, 10)
        two = view * 2
        del one, two, view
        _ = given.t() + given

    assert cost_of(call) == Cost(0, 3, 800, 800 + 800 + 1200)


def test_costs_add_and_scale() -> None:
    assert Cost(10, 4, 7, 8).scaled(0.5) + Cost(1, 1, 9, 1) == Cost(6, 3, 9, 5)
    one = Trace(Counter({Op("matmul", torch.float32, 10, 20): 3}), peak=5, peak_inside=2)
    both = one.scaled(0.5) + Trace(Counter({Op("stream", torch.float32, 0, 4): 1}), peak=7)
    assert (both.flops, both.moved, both.launches, both.peak, both.peak_inside) == (15, 34, 2.5, 7, 2)


def test_kinds_of_operators() -> None:
    tokens, rows = torch.randn(1, 128, 96), torch.randint(128, (1, 64, 1)).expand(1, 64, 96)
    tiles, matrix = torch.randn(1, 8, 16, 96), torch.randn(1, 8, 8, 16)
    assert kinds(lambda: F.linear(tokens, torch.ones(96, 96))) == {"matmul": 1, "stream": 1}
    assert kinds(lambda: torch.matmul(matrix, tiles)) == {"batched": 1}
    assert kinds(lambda: torch.matmul(torch.ones(1, 128, 128), tokens)) == {"matmul": 1, "stream": 1}
    assert kinds(lambda: F.conv2d(torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3))) == {"convolution": 1, "stream": 2}
    assert kinds(lambda: F.gelu(tokens).softmax(-1)) == {"function": 2}
    assert kinds(lambda: tokens.gather(1, rows)) == {"gather": 1}
    assert kinds(lambda: tokens.scatter_reduce(1, rows, tokens[:, :64], reduce="mean")) == {"scatter": 1}
    assert kinds(lambda: tokens.logical_and(tokens)) == {"stream": 1}


def test_what_is_repeated_by_a_stride_of_zero_is_read_once() -> None:
    row, tokens = torch.ones(1, 10), torch.ones(4, 10)
    assert trace(lambda: row.expand(4, 10) + tokens).moved == 4 * (10 + 40 + 40)


def test_results_in_given_memory_are_written_and_not_read() -> None:
    tokens, result = torch.ones(10), torch.empty(10)
    given = trace(lambda: torch.add(tokens, 1.0, out=result))
    assert (given.moved, given.peak) == (80, 0)
    assert trace(lambda: result.add_(1.0)).moved == 80


def test_attention_on_the_meta_device_stays_in_one_piece() -> None:
    """Real devices fuse it: no scores are ever written."""
    real, none = (torch.zeros(2, 4, 128, 16, device=device) for device in ("cpu", "meta"))
    on_cpu, on_meta = (trace(lambda x=x: F.scaled_dot_product_attention(x, x, value=x)) for x in (real, none))
    (op,) = on_meta.ops
    assert (op.kind, op.flops, op.moved) == ("attention", 4 * 2 * 4 * 128 * 128 * 16, 4 * real.nbytes)
    assert on_cpu.flops == on_meta.flops
    assert on_meta.peak == real.nbytes


@pytest.mark.parametrize("name", ["sd15", "flux", "pixart"])
def test_the_meta_device_does_what_a_real_one_does(name: str) -> None:
    real, none = tiny.model(name), tiny.model(name).to("meta")
    given = INPUTS[name]()
    counted, expected = (trace(lambda m=m, x=x: m(**x)) for m, x in ((none, to_meta(given)), (real, given)))
    assert counted.flops == expected.flops
    assert counted.launches == expected.launches
    assert counted.moved == pytest.approx(expected.moved, rel=0.02)  # attention also returns sums on a real device
    assert counted.peak == pytest.approx(expected.peak, rel=0.05)


def ids(side: int) -> torch.Tensor:
    return torch.tensor([(0, row, column) for row in range(side) for column in range(side)]).float()


INPUTS: dict[str, Any] = {
    "sd15": lambda: {
        "sample": torch.zeros(1, 4, 16, 16),
        "timestep": torch.tensor(5.0),
        "encoder_hidden_states": torch.zeros(1, 7, 32),
    },
    "flux": lambda: {
        "hidden_states": torch.zeros(1, 64, 16),
        "encoder_hidden_states": torch.zeros(1, 7, 32),
        "pooled_projections": torch.zeros(1, 32),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([1.0]),
        "img_ids": ids(8),
        "txt_ids": torch.zeros(7, 3),
    },
    "pixart": lambda: {
        "hidden_states": torch.zeros(1, 4, 16, 16),
        "encoder_hidden_states": torch.zeros(1, 7, 32),
        "timestep": torch.tensor([1]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    },
}


def to_meta(given: dict[str, Any]) -> dict[str, Any]:
    """Position ids stay where they can be read."""
    stays = ("img_ids", "txt_ids")
    return {
        name: value.to("meta") if isinstance(value, torch.Tensor) and name not in stays else value
        for name, value in given.items()
    }


def test_peaks_inside_modules_count_what_they_add() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            return y + x

    inner = Two()
    given = torch.zeros(100)

    def call() -> None:
        before = given * 2  # alive inside, but not the module's
        inner(before)
        del before
        wide = torch.ones(1000)
        wide + 1

    found = trace(call, inside=[inner])
    assert (found.peak_inside, found.peak) == (800, 8000)
    assert not inner._forward_hooks
    assert not inner._forward_pre_hooks


# ---------------------------------------------------------------------------------------------- predicting
def test_an_operator_takes_the_longer_of_arithmetic_and_memory() -> None:
    busy, idle = Op("matmul", torch.float32, 5000, 100), Op("matmul", torch.float32, 10, 300)
    assert PLAIN.work(busy) == 5.0
    assert PLAIN.work(idle) == 3.0
    assert PLAIN.work(Op("stream", torch.float32, 0, 50)) == 0.5


def test_seconds_add_launches_or_hide_them() -> None:
    both = Trace(Counter({Op("matmul", torch.float32, 1000, 0): 2, Op("stream", torch.float32, 0, 50): 4}))
    assert PLAIN.seconds(both) == 2 * 1 + 4 * 0.5 + 6 * 0.5
    ahead = Hardware("the same, with a queue", PLAIN.matmul, 100.0, 0.5, overlaps=True)
    assert ahead.seconds(both) == 4.0
    assert ahead.seconds(both + Trace(Counter({Op("stream", torch.float32, 0, 0): 10}))) == 8.0


def test_shares_fresh_memory_and_slower_machines() -> None:
    machine = Hardware("m", {torch.float32: 1000.0}, 100.0, 0.0, {"attention": 0.5, "gather": 0.1}, fresh=10.0)
    assert machine.work(Op("attention", torch.float32, 1000, 0)) == 2.0
    assert machine.work(Op("gather", torch.float32, 0, 10)) == 1.0
    large = Trace(Counter({Op("stream", torch.float32, 0, 0, fresh=40): 1}))
    assert machine.seconds(large) == 4.0
    factors = {**dict.fromkeys(PARTS, 1.0), "matmul": 2.0, "attention": 4.0, "fresh": 3.0}
    slow = machine.slowed(factors)
    for op in (Op("matmul", torch.float32, 1000, 0), Op("attention", torch.float32, 1000, 0)):
        assert slow.work(op) == pytest.approx(factors[op.kind] * machine.work(op))
    assert slow.work(Op("batched", torch.float32, 100, 0)) == machine.work(Op("batched", torch.float32, 100, 0))
    assert slow.seconds(large) == pytest.approx(12.0)


def test_weights_are_put_in_order_however_few_rows_they_meet() -> None:
    machine = Hardware("m", {torch.float32: 1000.0}, 100.0, 0.0, weights=10.0)
    product = Trace(Counter({Op("matmul", torch.float32, 500, 0, weights=40): 2}))
    assert machine.seconds(product) == 2 * (0.5 + 4.0)
    assert machine.slowed({**dict.fromkeys(PARTS, 1.0), "weights": 2.0}).seconds(product) == 2 * (0.5 + 8.0)
    assert PLAIN.seconds(product) == 2 * (0.5 + 0.5), "other machines take them as they lie"
    assert all(gpu.weights == inf for gpu in GPUS.values())


def test_weights_are_seen_where_they_are() -> None:
    linear, filters = nn.Linear(8, 4), nn.Conv2d(3, 5, 3)
    calls = (lambda: linear(torch.ones(2, 8)), lambda: filters(torch.ones(1, 3, 8, 8)))
    assert [sum(op.weights for op in trace(call).ops) for call in calls] == [4 * 8 * 4, 4 * 5 * 3 * 9]
    batch = torch.ones(2, 8, 8)
    assert sum(op.weights for op in trace(lambda: batch @ batch).ops) == 0
    assert sum(op.weights for op in Work(((8, 4),)).trace(1, 2, 0, torch.float32).ops) == 4 * 8 * 4


def test_known_gpus_are_slower_than_their_data_sheets() -> None:
    assert set(GPUS) == {"V100", "RTX 8000", "RTX 6000 Ada", "A100", "H100", "RTX 4090"}
    half = {name: gpu.rate("matmul", torch.float16) / 1e12 for name, gpu in GPUS.items()}
    assert half["H100"] == pytest.approx(0.7 * 989.4)
    assert half["V100"] < half["RTX 8000"] < half["RTX 4090"] < half["A100"] < half["RTX 6000 Ada"] < half["H100"]
    assert GPUS["V100"].rate("matmul", torch.bfloat16) == GPUS["V100"].rate("matmul", torch.float32)
    assert all(gpu.source and gpu.overlaps for gpu in GPUS.values())
    with pytest.raises(SettingError, match="'A100'"):
        Hardware.named("GTX 970")


def test_this_machine_is_measured() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    machine = Hardware.measure()
    assert torch.equal(torch.get_rng_state(), state), "measuring must not touch the sampler's noise"
    assert 1e8 < machine.rate("matmul", torch.float32) < 1e14
    assert 1e7 < machine.bandwidth < 1e13
    assert 1e-8 < machine.launch < 1e-2
    assert set(machine.shares) == set(KINDS) - {"matmul", "stream"}
    assert all(0 < share < inf for share in machine.shares.values())
    assert machine.fresh > 0
    assert machine.weights > 1e6
    assert not machine.overlaps
    again = Hardware.from_row({name: str(value) for name, value in machine.as_row().items()} | {"date": "today"})
    assert replace(again, source=machine.source) == machine


# ---------------------------------------------------------------------------------------------- the paper's formulas
def test_the_papers_formulas_by_hand() -> None:
    assert formulas.block(4096, 640) == 7 * 409600 * 4096 + 2 * 640 * 16777216 == 33_218_887_680
    assert formulas.speed_up(4096, 640, 0.5) == pytest.approx(12672 / 4288)
    assert formulas.speed_up(1024, 1280, 1.0) == 1.0
    assert formulas.selection(4096, 640) == 10_737_418_240
    assert formulas.selection(4096, 640, regions=256) == 41_943_040
    assert formulas.weights(4096, 2048, 640, regions=256) == 20_971_520 + 2_621_440
    assert formulas.merge(4096, 2048, 640) == 5_368_709_120
    assert formulas.merge(4096, 2048, 640, regions=256) == 20_971_520
    whole = formulas.merged_block(4096, 2048, 640, regions=256)
    planning = formulas.selection(4096, 640, 256) / 10 + formulas.weights(4096, 2048, 640, 256) / 5
    assert whole == formulas.block(2048, 640) + 2 * 20_971_520 + planning


@pytest.mark.parametrize("method", [ToMA.tile(0.5), ToMA.whole(0.5)])
def test_plans_multiply_as_the_formulas_say(method: ToMA) -> None:
    """Two operations are one multiplication and its addition; norms are no product, so ``Nd`` is not counted."""
    tokens, width, regions = 256, 32, 16 if method.attention_regions is None else 1
    given = torch.zeros(1, tokens, width, device="meta")
    plans: list[Any] = []
    selecting = trace(lambda: plans.append(method.plan(given, Grid(16, 16))))
    kept = plans[0].kept
    weights = formulas.weights(tokens, kept, width, regions) - tokens * width
    known = 0 if method.attention_regions is None else weights  # inside its regions, a selection's cosines serve again
    assert selecting.flops / 2 == formulas.selection(tokens, width, regions=16) + known
    assert trace(lambda: method.reweigh(plans[0], given)).flops / 2 == weights
    assert trace(lambda: plans[0].merge(given)).flops / 2 == formulas.merge(tokens, kept, width, regions)
    merged = plans[0].merge(given)
    assert trace(lambda: plans[0].unmerge(merged)).flops / 2 == formulas.merge(tokens, kept, width, regions)


# ---------------------------------------------------------------------------------------------- work of sites
@pytest.mark.parametrize(("name", "span"), [("sd15", "op"), ("sd15", "block"), ("pixart", "op"), ("pixart", "block")])
def test_work_read_off_modules_is_what_they_do(name: str, span: Any) -> None:
    """Less what does not depend on the number of image tokens: the text's keys and values, modulation."""
    model, given = tiny.model(name).to("meta"), to_meta(INPUTS[name]())
    family = family_of(model)
    blocks = [block for stack in family.stacks(model) for block in stack.blocks]
    described = family.block(blocks[0])
    assert described is not None
    seen: dict[nn.Module, tuple[int, float]] = {}

    def see(module: nn.Module, args: Any, kwargs: Any) -> None:
        tokens = args[0] if args else kwargs["hidden_states"]
        rest = {key: value for key, value in kwargs.items() if key != "hidden_states"}
        full, half = (
            trace(lambda x=x: type(module).forward(module, x, *args[1:], **rest)).flops
            for x in (tokens, tokens[:, : tokens.shape[1] // 2])
        )
        seen[module] = tokens.shape[1], full - half

    wrapped = (
        [(op.kind, getattr(block, op.path), block) for block in blocks for op in described.ops]
        if span == "op"
        else [("block", block, block) for block in blocks]
    )
    hooks = [module.register_forward_pre_hook(see, with_kwargs=True) for _, module, _ in wrapped]
    with torch.no_grad():
        model(**given)
    for hook in hooks:
        hook.remove()
    for kind, module, block in wrapped:
        ops = [(op.kind, getattr(block, op.path)) for op in described.ops]
        work = work_of(kind, module, ops)
        assert work is not None
        tokens, saved = seen[module]
        sizes = [work.trace(1, tokens, 7, torch.float32, few).flops for few in (None, tokens // 2)]
        assert sizes[0] - sizes[1] == saved


def test_work_of_joint_attention_and_of_fewer_keys() -> None:
    flux = tiny.model("flux")
    joint, single = flux.transformer_blocks[0], flux.single_transformer_blocks[0]
    width = 32
    work = work_of("attention", joint.attn, joint=True)
    assert work == Work(((width, width),) * 4, mixed=(width,), joint=True)
    assert work.trace(1, 64, 7, torch.float32).flops == 64 * 4 * 2 * width**2 + 4 * 64 * 71 * width
    whole = work_of("block", single, joint=True)
    assert whole is not None
    assert sorted(whole.products) == sorted([(width, width)] * 3 + [(width, 4 * width), (5 * width, width)])
    pooled = work_of("pooled", joint.attn, joint=True)
    assert pooled == Work(((width, width),) * 2, mixed=(width,), joint=True, pooled=True)
    assert pooled.trace(1, 64, 7, torch.float32, few=16).flops == 16 * 2 * 2 * width**2 + 4 * 64 * 23 * width


def test_modules_without_matrices_have_no_work() -> None:
    assert work_of("attention", nn.Identity()) is None


def test_large_results_take_fresh_memory() -> None:
    work = Work(((640, 5120),))
    (product,) = (op for op in work.trace(1, 4096, 0, torch.float32).ops if op.kind == "matmul")
    assert product.fresh == 4096 * 5120 * 4 > LARGE
    assert all(op.fresh == 0 for op in work.trace(1, 1024, 0, torch.float32).ops)


# ---------------------------------------------------------------------------------------------- merging in few launches
def launches(call: Any) -> int:
    return int(trace(call).launches)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("side", [16, 18])
@pytest.mark.parametrize("method", [ToMA.tile(), ToMA.stripe(), ToMA.whole(), ToMA.tile(unmerge="least-squares")])
def test_merging_and_unmerging_take_three_launches_at_most(method: ToMA, side: int, batch: int) -> None:
    """Grids that tiles cut evenly, and others; a batch that repeats the samples of the plan."""
    if side == 18 and method.attention_regions is not None:
        pytest.skip("whole-grid attention needs regions that hold equally many tokens")
    tokens = torch.randn(batch, side * side, 8)
    plan = method.plan(tokens[: max(1, batch // 2)], Grid(side, side))
    for form in (plan, *([] if plan.layout.padded else [plan.with_layout(plan.layout.arranged)])):
        merged = form.merge(tokens)
        assert launches(lambda form=form: form.merge(tokens)) <= 3
        assert launches(lambda form=form, merged=merged: form.unmerge(merged)) <= 3


def test_arranged_tokens_merge_in_one_launch() -> None:
    tokens = torch.randn(2, 256, 8)
    plan = ToMA.tile().by_region().plan(tokens, Grid(16, 16))
    merged = plan.merge(tokens)
    assert launches(lambda: plan.merge(tokens)) == 1
    assert launches(lambda: plan.unmerge(merged)) == 1


def test_with_kernels_merging_and_unmerging_take_one_launch_each() -> None:
    """On the meta device a kernel is there by its shapes alone; tokens in raster order, which it gathers itself."""
    tokens = torch.zeros(2, 256, 8, device="meta")
    plan = replace(ToMA.tile().plan(tokens, Grid(16, 16)), fused=True)
    merged = plan.merge(tokens)
    assert merged.shape == (2, 128, 8)
    assert launches(lambda: plan.merge(tokens)) == 1
    assert launches(lambda: plan.unmerge(merged)) == 1
    assert launches(lambda: plan.unmerge_add(merged, tokens)) == 1


def test_with_kernels_a_default_plan_takes_a_handful_of_launches() -> None:
    """And is counted for what it multiplies."""
    tokens, grid = torch.zeros(2, 256, 32, device="meta"), Grid(16, 16)
    method = ToMA(0.5, share="sample")
    plain = trace(lambda: method.plan(tokens, grid))
    with kernels.assumed():
        fused = trace(lambda: method.plan(tokens, grid))
        plan = method.plan(tokens, grid)
        assert plan.fused
        again = trace(lambda: method.reweigh(plan, tokens))
        together = trace(lambda: ToMA(0.5, share="batch").plan(tokens, grid))
    assert fused.launches <= 4
    assert again.launches <= 4
    assert plain.launches <= 185
    products, fit = 2 * 2 * 16 * 16 * 16 * 32, 2 * 2 * 16 * (16 * 16 * 8 + 2 * 16 * 8 * 8)  # 2 samples, 16 tiles
    assert fused.flops == products + fit
    assert together.flops == 2 * products + fit
    assert plain.flops < 2 * products
    assert not method.plan(tokens, grid).fused, "outside, the meta device stands for plain torch"


def test_merging_and_planning_ask_the_device_nothing() -> None:
    """On a GPU an answer would be waited for. Regions are laid out once, on the CPU; then no step reads a number."""
    model, given = tiny.model("sd15"), INPUTS["sd15"]()

    def asks(step: int) -> int:
        patch.step(step)
        with Reads() as reads, torch.no_grad():
            model(**given)
        return reads.count

    unpatched = Reads()
    with unpatched, torch.no_grad():
        model(**given)
    with tomadiff.apply(model, ToMA.paper(0.5)) as patch:
        asks(0)
        patch.begin()
        assert [asks(step) for step in (0, 1, 5, 10)] == [unpatched.count] * 4  # select, reuse, reweigh, select
        assert [level.plans_made for level in patch.report().models[0].levels] == [3, 3]


class Reads(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts numbers that are read from tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        self.count += func in (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default)
        return func(*args, **(kwargs or {}))


# ---------------------------------------------------------------------------------------------- fitting
def test_constants_are_found_again_from_timed_calls() -> None:
    true = PLAIN.slowed({**dict.fromkeys(PARTS, 1.0), "matmul": 1.5, "stream": 0.5, "launch": 3.0})
    calls = [
        Trace(Counter({Op("matmul", torch.float32, 1000 * a, 0): 1, Op("stream", torch.float32, 0, 100 * b): c}))
        for a, b, c in ((1, 1, 1), (5, 1, 2), (1, 5, 3), (2, 2, 9), (0, 1, 4))
    ]
    found = fitted(PLAIN, [(call, true.seconds(call)) for call in calls], pull=1e-9)
    assert found.rate("matmul", torch.float32) == pytest.approx(1000 / 1.5, rel=1e-3)
    assert found.rate("stream", torch.float32) == pytest.approx(200, rel=1e-3)
    assert found.launch == pytest.approx(1.5, rel=1e-3)
    assert found.rate("attention", torch.float32) == pytest.approx(1000, rel=1e-3), "nothing was said about it"
    unseen = Trace(Counter({Op("matmul", torch.float32, 7000, 0): 3, Op("stream", torch.float32, 0, 10): 2}))
    assert found.seconds(unseen) == pytest.approx(true.seconds(unseen), rel=1e-3)


# ---------------------------------------------------------------------------------------------- what is alive
def test_sdxl_at_1024_holds_less_with_half_of_its_tokens_merged() -> None:
    """Inside transformer blocks a quarter less at least; the whole call no more, selecting or not."""
    model, given = build("sdxl", depth=1), inputs("sdxl", 1024)  # deeper stacks hold no more at a time
    before, after = window(model, given, None).mean, window(model, given, ToMA.tile(0.5)).mean
    assert before.peak_inside == 190 * 2**20
    assert after.peak_inside <= 0.75 * before.peak_inside
    assert after.peak <= before.peak
