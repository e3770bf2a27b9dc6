"""A model that another program runs: no pipeline, no hooks, names of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tomadiff.engine.hosted import HostedModel, HostedRun
from tomadiff.families.base import Block, Family, Op, Rows, TokenLayout, stacks_named
from tomadiff.families.registry import family_of
from tomadiff.merging.grid import Grid
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.recommend import Recommended
from tomadiff.steps.run import Run

TIMES = (900.0, 700.0, 500.0, 300.0)


def arguments(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "sample": torch.randn(2, 4, 32, 32, generator=generator),
        "timestep": torch.tensor(TIMES[step]),
        "encoder_hidden_states": torch.ones(2, 5, 32),
        "return_dict": False,
    }


def hosted(model: nn.Module, method: tomadiff.Method, family: Family | None = None) -> HostedModel:
    return HostedModel(model, family or family_of(model), method, method.schedule)


def outputs(run: HostedRun, model: nn.Module) -> list[Tensor]:
    found = []
    for step, level in enumerate(TIMES):
        run.at(level)
        given = arguments(step)
        with torch.no_grad(), run.merging(model, (), given):
            found.append(model(**given)[0])
    return found


@pytest.mark.parametrize("method", [tomadiff.ToMA(0.5), tomadiff.ToMA.paper(0.5)], ids=["ours", "paper"])
def test_a_hosted_model_merges_as_a_patched_one(method: tomadiff.ToMA) -> None:
    model = tiny.sd15_unet()
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    run = HostedRun(TIMES, TIMES)
    run.merge(hosted(model, method))
    ours = outputs(run, model)
    assert "50.0%" in str(run.report())
    run.end()
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before
    assert "50.0%" in str(run.report()), "what was done can still be read"
    with tomadiff.apply(model, method, guard=False) as patch:
        patch.begin(len(TIMES))
        for step, result in enumerate(ours):
            patch.step(step)
            with torch.no_grad():
                assert torch.equal(model(**arguments(step))[0], result)


def test_calls_that_are_not_announced_run_as_they_are() -> None:
    model, given = tiny.sd15_unet(), arguments(0)
    with torch.no_grad():
        plain = model(**given)[0]
        run = HostedRun(TIMES)
        run.merge(hosted(model, tomadiff.ToMA(0.5)))
        with run.merging(model, (), given):
            assert not torch.equal(model(**given)[0], plain)
        assert torch.equal(model(**given)[0], plain)
        with run.merging(nn.Linear(1, 1), (), given):
            assert torch.equal(model(**given)[0], plain), "another model was announced"
        run.end()


def test_the_later_of_two_runs_merges_and_the_first_goes_on_after_it() -> None:
    model, given = tiny.sd15_unet(), arguments(0)
    with torch.no_grad():
        alone = HostedRun(TIMES)
        alone.merge(hosted(model, tomadiff.ToMA(0.25)))
        expected = outputs(alone, model)
        alone.end()
        outer, inner = HostedRun(TIMES), HostedRun(TIMES)
        outer.merge(hosted(model, tomadiff.ToMA(0.25)))
        first = outputs(outer, model)
        inner.merge(hosted(model, tomadiff.ToMA(0.75)))
        with inner.merging(model, (), given):
            assert not torch.equal(model(**given)[0], expected[0])
        inner.end()
        again = HostedRun(TIMES)
        again.merge(hosted(model, tomadiff.ToMA(0.25)))
        assert all(map(torch.equal, first, expected))
        assert all(map(torch.equal, outputs(again, model), expected))
        again.end()


class _Mixer(nn.Module):
    """A block of somebody else's: other names, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, img: Tensor, scale: Tensor, txt: Tensor | None = None) -> Tensor:
        img += self.layer(img) * scale
        return img


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Mixer()])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2).clone()
        scale = torch.arange(tokens.shape[1], dtype=tokens.dtype)[None, :, None]
        for block in self.blocks:
            tokens = block(tokens, scale=scale)
        return tokens


def _layout(_: nn.Module, call: Any) -> TokenLayout:
    return TokenLayout.flat(Grid(*call.image.shape[-2:]))


_FAMILY = Family(
    name="mixer",
    title="Mixer",
    models=("_Model",),
    blocks=(Block("_Mixer", rows=(Rows("scale", axis=1),), names={"img": "hidden_states"}, in_place=True),),
    stacks=stacks_named("blocks"),
    token_layout=_layout,
    names={"x": "sample"},
    timestep="t",
)


def test_blocks_with_names_of_their_own_that_write_into_their_tokens_merge() -> None:
    torch.manual_seed(0)
    model, method = _Model(), tomadiff.ToMA(0.5)
    image, time = torch.randn(1, 8, 8, 8), torch.tensor(1.0)
    tokens = image.flatten(2).transpose(1, 2)
    run = HostedRun(TIMES)
    run.merge(hosted(model, method, _FAMILY))
    with torch.no_grad():
        with run.merging(model, (image, time), {}):
            ours = model(image, time)
        plan = method.plan(nn.functional.layer_norm(tokens, (8,)), Grid(8, 8))
        merged = plan.merge(tokens)
        scale = plan.gather(torch.arange(64.0)[None, :, None], dim=1)
        theirs = tokens + plan.unmerge(model.blocks[0].layer(merged) * scale)  # type: ignore[operator,union-attr]
    run.end()
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_blocks_that_name_no_arguments_merge_as_those_that_do() -> None:
    class Nameless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor | None, Tensor]:
            return self.mixed(*args, **kwargs)

        def mixed(self, context: Tensor | None, x: Tensor) -> tuple[Tensor | None, Tensor]:
            assert context is not None
            return context, x + self.layer(x) * context.mean()

    torch.manual_seed(0)
    model, method = nn.Module(), tomadiff.ToMA(0.5)
    model.blocks = nn.ModuleList([Nameless()])
    block: Any = model.blocks[0]  # type: ignore[union-attr]
    names = {"context": "encoder_hidden_states", "x": "hidden_states"}
    described = Block("Nameless", outputs=(1,), names=names)
    family = Family("nameless", "Nameless", ("Module",), (described,), stacks_named("blocks"), _layout)
    tokens, text = torch.randn(1, 64, 8), torch.randn(1, 3, 8)
    run = HostedRun(TIMES)
    run.merge(hosted(model, method, family))
    with torch.no_grad(), run.merging(model, (), {"sample": torch.randn(1, 8, 8, 8)}):
        (context, ours), by_name = block(text, tokens), block(context=text, x=tokens)
    run.end()
    plan = method.plan(nn.functional.layer_norm(tokens, (8,)), Grid(8, 8))
    with torch.no_grad():
        theirs = tokens + plan.unmerge(block.layer(plan.merge(tokens)) * text.mean())
    assert context is text
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert torch.equal(by_name[1], ours)


def test_keys_that_are_given_again_merge_only_if_they_are_the_same_tokens() -> None:
    class Attention(nn.Module):
        seen: tuple[int, ...] = ()

        def forward(self, x: Tensor, context: Tensor) -> Tensor:
            self.seen = (x.shape[1], context.shape[1])
            return x

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = Attention()

    model = nn.Module()
    model.blocks = nn.ModuleList([Holder()])
    attention: Any = model.blocks[0].attn  # type: ignore[union-attr]
    names = {"x": "hidden_states", "context": "again"}
    op = Op("attn", "attention", again=("again",), names=names)
    family = Family("two", "Two", ("Module",), (Block("Holder", ops=(op,)),), stacks_named("blocks"), _layout)
    run = HostedRun(TIMES)
    run.merge(hosted(model, tomadiff.ToMA(0.5), family))
    tokens = torch.randn(1, 64, 8)
    for context, expected in ((tokens, (32, 32)), (tokens[:, :12], (32, 12))):
        with torch.no_grad(), run.merging(model, (), {"sample": torch.randn(1, 8, 8, 8)}):
            assert attention(tokens, context=context).shape == tokens.shape
        assert attention.seen == expected
    run.end()


# ---------------------------------------------------------------------------------------------- steps
@pytest.mark.parametrize(
    ("levels", "asked", "expected"),
    [
        ((10.0, 5.0, 1.0), (10.0, 5.0, 1.0), (0, 1, 2)),
        ((10.0, 5.0, 1.0), (10.0, 7.0, 5.0, 2.0, 1.0), (0, 0, 1, 1, 2)),  # of second order: between two levels
        ((10.0, 5.0, 1.0), (12.0, 10.00001, 0.5), (0, 0, 2)),
        ((1.0, 5.0, 10.0), (1.0, 3.0, 5.0, 10.0), (0, 0, 1, 2)),  # noise is added
        ((10.0, 1.0, 10.0, 1.0), (10.0, 1.0, 10.0, 1.0), (0, 1, 2, 3)),  # again from the middle
        ((), (3.0,), (0,)),
    ],
)
def test_a_call_belongs_to_the_last_step_whose_level_is_reached(
    levels: tuple[float, ...], asked: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    run = HostedRun(levels)
    assert tuple(run.at(level) for level in asked) == expected


def test_steps_are_forecast_and_memory_is_given_back() -> None:
    levels = [1 - step / 20 for step in range(20)]
    runs = []
    for _ in range(2):
        run, computed = HostedRun(levels, levels, Forecast(0.05)), []
        given = []
        for step, level in enumerate(levels):
            run.at(level)

            def compute(step: int = step, level: float = level, computed: list[int] = computed) -> Tensor:
                computed.append(step)
                return torch.full((1, 4), 1 + level)

            given.append(run.outputs("both passes", "form", compute))
        assert str(len(computed)) in str(run.report())
        runs.append((computed, torch.cat(given)))
        run.end()
    assert 4 <= len(runs[0][0]) < 20
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])
    assert torch.allclose(runs[0][1][:, 0], torch.tensor([1 + level for level in levels]), atol=0.1)


@pytest.mark.parametrize("steps", [3, 20, 50])
def test_what_is_recommended_follows_from_the_number_of_steps(steps: int) -> None:
    levels = [1 - step / steps for step in range(steps)]
    report = str(HostedRun(levels, levels, Recommended()).report())
    settings = Recommended().of_run(Run(steps))
    assert Recommended().why(Run(steps)) in report
    assert str(settings) in report


def test_samplers_that_look_for_their_own_steps_are_computed() -> None:
    """Adaptive ones call as often as they like; what they are given does not pile up."""
    run, computed = HostedRun([1.0, 0.5], [1.0, 0.5], Forecast(0.5)), []
    run.at(1.0)
    for number in range(50):
        run.outputs("both passes", "form", lambda number=number: computed.append(number) or torch.ones(1))
    assert len(computed) == 50
