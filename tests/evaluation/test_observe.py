"""Watching a model generate changes nothing and misses nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import tiny
from tomadiff import Schedule, ToMA, ToMeSD, apply
from tomadiff.evaluation.inspect.observe import HiddenStates, Place, Watched, Watcher, spread


@pytest.fixture(scope="module")
def sdxl() -> tiny.Tiny:
    return tiny.build("sdxl")


def watched(
    generated: tiny.Tiny, method: Any, schedule: Schedule, steps: int
) -> tuple[dict[str, Watched], torch.Tensor]:
    with apply(generated.pipe, method, schedule=schedule) as patch:
        watcher = Watcher([level.name for level in patch.report().models[0].levels])
        patch.watch(watcher)
        return watcher.watched, generated.draw(num_inference_steps=steps)


def test_every_step_of_every_level_is_seen(sdxl: tiny.Tiny) -> None:
    seen, _ = watched(sdxl, ToMA.tile(0.5), Schedule(3, 2), 5)
    assert list(seen) == ["level 0", "level 1"]
    assert [look.step for look in seen["level 0"].looks] == [0, 1, 2, 3, 4]
    assert [look.step for look in seen["level 0"].looks if look.selected] == [0, 3]
    assert seen["level 0"].plan.kept == seen["level 0"].looks[0].destinations.numel() == 128
    assert seen["level 0"].grid.tokens == seen["level 0"].tokens.shape[1] == 256


def test_destinations_in_use_cover_less_and_less_than_fresh_ones(sdxl: tiny.Tiny) -> None:
    looks = watched(sdxl, ToMA.tile(0.75), Schedule(4, 4), 4)[0]["level 0"].looks
    lost = [look.fresh - look.coverage for look in looks]
    assert 0 == lost[0] < lost[1] < lost[3]


@pytest.mark.parametrize("method", [ToMA(0.5), ToMA.tile(0.5), ToMA.tile(0.5, selector="random"), ToMeSD(0.5)])
def test_watching_does_not_change_the_image(sdxl: tiny.Tiny, method: Any) -> None:
    schedule = Schedule(2, 2)
    with apply(sdxl.pipe, method, schedule=schedule):
        alone = sdxl.draw(num_inference_steps=3)
    assert torch.equal(watched(sdxl, method, schedule, 3)[1], alone)


def test_a_watch_ends_with_its_patch(sdxl: tiny.Tiny) -> None:
    told: list[str] = []
    with apply(sdxl.pipe, 0.5) as patch:
        patch.watch(lambda name, *_: told.append(name))
        sdxl.draw(num_inference_steps=1)
    count = len(told)
    with apply(sdxl.pipe, 0.5):
        sdxl.draw(num_inference_steps=1)
    assert count == len(told) == 11  # blocks


@pytest.mark.parametrize(("family", "blocks"), [("sdxl", 11), ("flux", 5), ("sd3", 3), ("pixart", 2)])
def test_hidden_states_are_those_of_the_grid_in_every_family(family: str, blocks: int) -> None:
    generated = tiny.build(family)
    seen: list[tuple[Place, int, tuple[int, ...], int]] = []
    before = generated.draw(num_inference_steps=4)
    with HiddenStates(
        generated.pipe, lambda place, step, tokens, grid: seen.append((place, step, tokens.shape, grid.tokens)), steps=2
    ):
        assert torch.equal(generated.draw(num_inference_steps=4), before)
    assert {place.total for place, *_ in seen} == {blocks}
    assert len(seen) == min(blocks, 8) * 2
    assert {step for _, step, *_ in seen} == {0, 3}
    assert all(shape[0] == tokens for *_, shape, tokens in seen)
    count = len(seen)
    generated.draw(num_inference_steps=1)
    assert len(seen) == count  # the hooks are off


def test_what_is_spread_keeps_both_ends() -> None:
    assert spread(range(50), 6) == [0, 10, 20, 29, 39, 49]
    assert spread("abc", 6) == ["a", "b", "c"]
    assert spread(range(9), 1) == [0]
