"""Settings that spend tokens where they matter: ratios by op, a coverage target."""

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
