"""Settings that spend tokens where they matter: ratios by op, a coverage target, ops that reuse their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tests.strategies import clustered
from tomadiff import Grid, Schedule, Tiles, ToMA
from tomadiff.errors import SettingError
from tomadiff.inject import DATA
from tomadiff.methods.toma import RATIOS


@pytest.fixture
def unet() -> Any:
    return tiny.model("sd15")


def run(model: nn.Module, seed: int = 0, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sample, text = (torch.randn(batch, *size, generator=generator) for size in ((4, 16, 16), (8, 32)))
    with torch.no_grad():
        result: Tensor = model(sample, 500, text, return_dict=False)[0]
    return result


# ------------------------------------------------------------------------------ by op
def test_ops_with_a_ratio_of_their_own_have_plans_of_their_own(unet: Any) -> None:
    schedule = Schedule(ratio_at_op={"feed_forward": 0.25, "cross_attention": 0.0})
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=schedule) as patch:
        run(unet)
        levels = {level.name: level for level in patch.report().models[0].levels}
    assert levels["level 0"].realised_ratio == 0.5
    assert levels["level 0, feed forward"].realised_ratio == 0.25
    assert levels["level 0, cross attention"].plans_made == 0
    assert len({levels[name].sites for name in ("level 0", "level 0, feed forward")}) == 1


def test_the_same_ratio_by_op_gives_about_the_same_picture(unet: Any) -> None:
    """Plans differ (each op is planned from its own tokens), so pictures are near, not equal."""
    plain = run(unet)
    with tomadiff.apply(unet, 0.5):
        shared = run(unet)
    ops = {"attention": 0.5, "cross_attention": 0.5, "feed_forward": 0.5}
    with tomadiff.apply(unet, 0.25, schedule=Schedule(ratio_at_op=ops)):
        own = run(unet)
    assert not torch.equal(own, shared)
    assert (own - plain).norm() < 2 * (shared - plain).norm()


# ------------------------------------------------------------------------------ coverage
def test_coverage_takes_as_many_tokens_as_can_be_spared() -> None:
    """Regions of 16 with 4 clusters each: four destinations cover them all, so three quarters can go."""
    tokens = torch.stack([clustered(4, 4, 32, seed, spread=0.01)[0] for seed in range(4)])
    method = ToMA(coverage=0.99, regions=Tiles(4), share="sample")
    assert method.suitable_ratio(tokens, Grid(4, 4)) == 0.75
    noise = torch.randn(4, 16, 32)
    assert method.suitable_ratio(noise, Grid(4, 4)) == RATIOS[0], "nothing to spare: the least there is"
    assert ToMA(coverage=0.3).suitable_ratio(noise, Grid(4, 4)) == RATIOS[-1]
    assert ToMA(0.5).suitable_ratio(noise, Grid(4, 4)) is None


def test_a_target_that_is_met_is_reported(unet: Any) -> None:
    chosen = []
    for coverage in (0.6, 0.9):
        with tomadiff.apply(unet, coverage=coverage, selector="facility_location") as patch:
            first = run(unet)
            levels = patch.report().models[0].levels
            chosen.append([level.realised_ratio for level in levels])
            assert all(level.realised_ratio == RATIOS[0] or level.coverage >= coverage - 1e-3 for level in levels)
            patch.begin()
            assert torch.equal(run(unet), first), "the second picture knows nothing of the first"
    assert sum(chosen[0]) > sum(chosen[1]), "a higher target keeps more"


@pytest.mark.parametrize("settings", [{"coverage": 1.0}, {"coverage": True}])
def test_bad_targets_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="coverage"):
        ToMA(**settings)


@pytest.mark.slow
def test_a_target_works_compiled() -> None:
    """Compiled code keeps its shapes within a call; what the tokens can spare holds from the next call on."""
    drawer = tiny.build("pixart")
    compiled = torch.compile(drawer.model, fullgraph=True, backend="eager")
    setattr(drawer.pipe, drawer.part, compiled)
    with tomadiff.apply(drawer.pipe, coverage=0.75) as patch:
        drawer.draw(num_inference_steps=3, output_type="latent")
        level = patch.report().models[0].levels[0]
    assert level.realised_ratio in RATIOS
    assert level.realised_ratio != 0.5, "or the target would not have been tried"


# ------------------------------------------------------------------------------ reuse
class Calls:
    """Counts calls of a module's own forward."""

    def __init__(self, model: nn.Module, path: str) -> None:
        self.count = 0
        module = model.get_submodule(path)
        linear = next(child for child in module.modules() if isinstance(child, nn.Linear))
        linear.register_forward_hook(self)

    def __call__(self, *_: Any) -> None:
        self.count += 1


def first_op(model: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if DATA in module.__dict__)


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_ops_run_only_where_they_must(unet: Any, ratio: float) -> None:
    with tomadiff.apply(unet, ratio, schedule=Schedule(reuse_every=3, reuse_from=1)) as patch:
        calls = Calls(unet, first_op(unet))
        patch.begin(steps=8)
        for step in range(8):
            patch.step(step)
            run(unet, seed=step)
        assert calls.count == 4  # steps 0, 1, 4, 7


def test_a_new_picture_forgets_the_last(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5, schedule=Schedule(reuse_every=2)) as patch:
        patch.begin(steps=4)
        patch.step(0)
        run(unet, seed=0)
        patch.begin(steps=4)
        patch.step(1)  # as image-to-image begins: nothing to reuse yet
        later = run(unet, seed=1)
    with tomadiff.apply(unet, 0.5) as patch:
        patch.begin(steps=4)
        assert torch.equal(run(unet, seed=1), later)


def test_reuse_gives_again_what_was_given(unet: Any) -> None:
    """With the same input twice the result is the same; and nothing is left behind."""
    plain = run(unet)
    with tomadiff.apply(unet, 0.0, schedule=Schedule(reuse_every=2)) as patch:
        patch.begin(steps=2)
        patch.step(0)
        first = run(unet)
        patch.step(1)
        assert torch.allclose(run(unet), first, atol=1e-6)
        assert not torch.equal(run(unet, seed=5), plain)
    assert torch.equal(run(unet), plain)
