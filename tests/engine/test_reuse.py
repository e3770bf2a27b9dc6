"""Calls that are left out at some steps, and add again what they gave last; tests/families has every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tomadiff import Schedule
from tomadiff.engine.hooks import DATA

EVERY_SECOND = Schedule(reuse_every=2)


@pytest.fixture
def unet() -> Any:
    return tiny.model("sd15")


def run(model: nn.Module, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sample, text = (torch.randn(1, *size, generator=generator) for size in ((4, 16, 16), (8, 32)))
    result: Tensor = model(sample, 500, text, return_dict=False)[0]
    return result


class Calls:
    """Counts calls of the first wrapped module's own forward."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        module = next(module for module in model.modules() if DATA in module.__dict__)
        linear = next(child for child in module.modules() if isinstance(child, nn.Linear))
        linear.register_forward_hook(self)

    def __call__(self, *_: Any) -> None:
        self.count += 1


@torch.no_grad()
@pytest.mark.parametrize("span", ["op", "block"])
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_calls_run_only_where_they_must(unet: Any, ratio: float, span: Any) -> None:
    with tomadiff.apply(unet, ratio, span=span, schedule=Schedule(reuse_every=3, reuse_from=1)) as patch:
        calls = Calls(unet)
        patch.begin(steps=8)
        for step in range(8):
            patch.step(step)
            run(unet, seed=step)
        assert calls.count == 4  # steps 0, 1, 4, 7


@torch.no_grad()
def test_a_new_picture_forgets_the_last(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5, schedule=EVERY_SECOND) as patch:
        patch.begin(steps=4)
        patch.step(0)
        run(unet, seed=0)
        patch.begin(steps=4)
        patch.step(1)  # as image-to-image begins: nothing to reuse yet
        later = run(unet, seed=1)
    with tomadiff.apply(unet, 0.5) as patch:
        patch.begin(steps=4)
        assert torch.equal(run(unet, seed=1), later)


@torch.no_grad()
def test_nothing_is_left_behind(unet: Any) -> None:
    plain = run(unet)
    with tomadiff.apply(unet, 0.0, schedule=EVERY_SECOND) as patch:
        patch.begin(steps=2)
        for step in range(2):
            patch.step(step)
            reused = run(unet, seed=5 * step)
    assert not torch.equal(reused, run(unet, seed=5))
    assert torch.equal(run(unet), plain)


@pytest.mark.parametrize("span", ["op", "block"])
def test_who_learns_reuses_nothing(unet: Any, span: Any) -> None:
    """Answers of an earlier step have no gradients to give, and a graph must not outlive its call."""
    with tomadiff.apply(unet, 0.0, span=span, schedule=EVERY_SECOND) as patch:
        calls = Calls(unet)
        patch.begin(steps=2)
        for step in range(2):
            patch.step(step)
            run(unet, seed=step).sum().backward()
        assert calls.count == 2
        assert not any(module.__dict__[DATA].last for module in unet.modules() if DATA in module.__dict__)
