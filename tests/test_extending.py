"""New parts from outside: a selector, an unmerge, a schedule and a command take one file each, and no change of others.

Families, methods and metrics have examples of their own, in ``docs/adding``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import tomadiff
from tests import tiny
from tomadiff import Grid, Schedule, ToMA
from tomadiff.cli.main import app
from tomadiff.errors import SettingError
from tomadiff.merging.select import SELECTORS, Selection
from tomadiff.merging.unmerge import UNMERGES, Unmerging

GRID = Grid(8, 8)


def first(similarity: Tensor, count: int, mask: Tensor | None = None) -> Selection:
    """The first tokens of every region."""
    return Selection(torch.arange(count).expand(similarity.shape[0], -1))


def test_a_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SELECTORS, "first", first)
    tokens = torch.randn(1, GRID.tokens, 4)
    for selector in ("first", first):  # by name, or as a function
        plan = ToMA.tile(0.5, selector=selector).plan(tokens, GRID)
        assert plan.local_index[0, 0].tolist() == list(range(8))
    with pytest.raises(SettingError, match="what a token is worth"):
        ToMA.tile(0.5, selector=first, quota="shared").plan(tokens, GRID)


def test_an_unmerge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token takes the mean of its region's destinations."""

    def mean(weights: Tensor, merge: Tensor, products: Tensor | None, kept: Tensor | None) -> Tensor:
        return torch.full_like(weights.transpose(-1, -2), 1 / weights.shape[-2])

    with pytest.raises(SettingError, match="least-squares"):
        ToMA(0.5, unmerge="mean")
    monkeypatch.setitem(UNMERGES, "mean", Unmerging(mean))
    tokens = torch.randn(1, GRID.tokens, 4)
    plan = ToMA.tile(0.5, unmerge="mean").plan(tokens, GRID)
    back = plan.layout.split(plan.unmerge(plan.merge(tokens)))
    torch.testing.assert_close(back, back[:, :, :1].expand_as(back))


@dataclass(frozen=True)
class EveryOther(Schedule):
    """Merges at every second step."""

    def merges_at(self, step: int, total: int | None = None) -> bool:
        return step % 2 == 0


def test_a_schedule() -> None:
    generated = tiny.build("sdxl")
    steps: list[int] = []
    with tomadiff.apply(generated.pipe, ToMA.tile(0.5), schedule=EveryOther(1, 1), guard=False) as patch:
        patch.watch(lambda name, group, tokens: steps.append(group.context.info.step))
        generated.draw(num_inference_steps=4, output_type="latent")
    assert set(steps) == {0, 2}
    assert isinstance(replace(patch.schedule, start=1), EveryOther)


def test_a_command() -> None:
    commands = list(app.registered_commands)
    try:
        app.command("hello")(lambda: print("hello"))
        assert CliRunner().invoke(app, ["hello"]).stdout == "hello\n"
    finally:
        app.registered_commands[:] = commands
