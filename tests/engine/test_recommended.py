"""``apply(pipe)`` alone, and budgets that choose steps and merging: on real pipelines, counted call by call."""

from __future__ import annotations

import copy
import logging
import pickle
from itertools import product
from typing import Any

import diffusers
import pytest
import torch

import tomadiff
from tests import denoisers, tiny
from tests.cost.test_budget import counted
from tomadiff import ToMA
from tomadiff.errors import SettingError
from tomadiff.steps.recommend import Recommended
from tomadiff.steps.run import Run

STEPS = 10


def draw(one: tiny.Tiny, steps: int = STEPS) -> Any:
    return one.draw(num_inference_steps=steps)


# ---------------------------------------------------------------------------------------------- apply(pipe)
def test_alone_it_forecasts_as_the_number_of_steps_recommends() -> None:
    one = tiny.build("sdxl")
    one.settings["guidance_scale"] = 3.0
    plain = draw(one)
    with tomadiff.apply(one.pipe) as patch:
        assert "the number of steps is not known" in patch.summary()
        image = draw(one)
        assert "recommended for 10 steps: tolerance" in patch.summary()
        assert not patch.plans()
    tolerance = Recommended().of_run(Run(STEPS)).tolerance
    with tomadiff.apply(one.pipe, forecast=tolerance) as patch:
        assert torch.equal(draw(one), image)
    assert torch.equal(draw(one), plain)


def test_few_steps_change_nothing_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    one = tiny.build("flux")
    plain = draw(one, 4)
    with caplog.at_level(logging.WARNING, "tomadiff"), tomadiff.apply(one.pipe) as patch:
        assert torch.equal(draw(one, 4), plain)
        draw(one, 4)
        assert "nothing is recommended for 4 steps" in patch.summary()
    assert sum("nothing is recommended for 4 steps" in record.message for record in caplog.records) == 1


def test_it_works_without_a_family_and_travels() -> None:
    pipe, call = denoisers.sana()
    plain = denoisers.generate(pipe, call, STEPS)
    tomadiff.apply(pipe)
    image = denoisers.generate(pipe, call, STEPS)
    copied = copy.deepcopy(pipe)
    assert torch.equal(denoisers.generate(copied, call, STEPS), image)
    pipe.transformer = pickle.loads(pickle.dumps(pipe.transformer))
    assert torch.equal(denoisers.generate(pipe, call, STEPS), image)
    tomadiff.remove(copied)
    assert torch.equal(denoisers.generate(copied, call, STEPS), plain)


# ---------------------------------------------------------------------------------------------- budgets
CAPS = [
    ("pixart", 8, 0.4),
    pytest.param("flux", 8, 0.4, marks=pytest.mark.slow),
    pytest.param("sdxl", 8, 0.55, marks=pytest.mark.slow),
    *(
        pytest.param(family, steps, flops, marks=pytest.mark.slow)
        for family, steps, flops in product(("sdxl", "flux"), (8, 20), (0.7, 0.5))
    ),
]


@pytest.mark.parametrize(("family", "steps", "flops"), CAPS)
def test_no_image_exceeds_its_cap(family: str, steps: int, flops: float) -> None:
    one = tiny.build(family)
    full = counted(lambda: draw(one, steps), one.model)
    with tomadiff.apply(one.pipe, flops=flops) as patch:
        draw(one, steps)  # chooses
        share = counted(lambda: draw(one, steps), one.model) / full
        assert share <= flops + 1e-9
        assert share > flops - 0.15
        (choice,) = patch.choices.values()
        assert share == pytest.approx(choice.share, rel=1e-9)
        assert str(choice) in patch.summary()
        assert f"flops={flops:g}: " in patch.summary()


def test_a_budget_counts_steps_of_models_without_a_family() -> None:
    pipe, call = denoisers.sana()
    plain = denoisers.generate(pipe, call, 10)
    with tomadiff.apply(pipe, flops=0.5) as patch:
        image = denoisers.generate(pipe, call, 10)
        assert len(patch.pattern.computed) == 5
        assert "flops=0.5: 5 of 10 steps of a transformer are computed" in patch.summary()
        patch.set(flops=0.8)
        assert not torch.equal(denoisers.generate(pipe, call, 10), image)
        assert len(patch.pattern.computed) == 8
        patch.set(flops=0.2)
        with pytest.raises(SettingError, match=r"flops=0.2 is out of reach: 4 steps"):
            denoisers.generate(pipe, call, 4)
    assert torch.equal(denoisers.generate(pipe, call, 10), plain)


@pytest.mark.slow
def test_a_method_by_name_merges_alone() -> None:
    one = tiny.build("flux")
    with tomadiff.apply(one.pipe, ToMA(), flops=0.8) as patch:
        draw(one, 8)
        assert not patch.report().forecasts
        assert patch.choices["transformer"].ratio > 0


@pytest.mark.slow
def test_of_ratio_and_budget_the_last_holds() -> None:
    one = tiny.build("flux")
    with tomadiff.apply(one.pipe, 0.5, guard=False):
        merged = draw(one)
    with tomadiff.apply(one.pipe, flops=0.6, guard=False) as patch:
        image = draw(one)
        assert len(patch.pattern.computed) == 6
        patch.set(ratio=0.5)
        assert torch.equal(draw(one), merged)
        patch.set(flops=0.6, forecast=0)
        draw(one)
        assert patch.choices["transformer"].computed is None
    with tomadiff.apply(one.pipe, flops=0.6, guard=False):
        assert torch.equal(draw(one), image)


@pytest.mark.slow
def test_samplers_that_add_noise_are_left_to_merging() -> None:
    one = tiny.build("sd15")
    one.pipe.scheduler = diffusers.EulerAncestralDiscreteScheduler.from_config(one.pipe.scheduler.config)
    with tomadiff.apply(one.pipe, flops=0.9) as patch:
        draw(one)
        assert patch.choices["unet"].computed is None
        assert patch.choices["unet"].ratio > 0
        assert "adds noise" in patch.summary()
