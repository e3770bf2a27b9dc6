"""New parts from outside: each takes one file, and no change of others.

A selector, an unmerge, a schedule, a metric, a network that looks at images, and an option of the command line.
Families and methods have examples of their own, in ``docs/adding``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import tomadiff
from tests import tiny
from tomadiff import Grid, Schedule, ToMA
from tomadiff.cli.main import app
from tomadiff.cli.options import Size, read_size
from tomadiff.errors import SettingError
from tomadiff.evaluation.metrics.distances import METRICS, Metric
from tomadiff.evaluation.metrics.features import to_pixels
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.metrics.networks import NETWORKS, Gives, Known, openers
from tomadiff.evaluation.runs.record import Run, Sample
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


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two images of two seeds: white ones, and merged ones that are a fifth darker."""
    run = Run.begin(tmp_path, {}, {})
    for seed in (0, 1):
        for method, grey in (("full", 255), ("toma", 204)):
            run.add(Sample(method, 0.0, "a fox", seed), Image.new("RGB", (16, 16), (grey, grey, grey)))
    return run


def test_a_metric(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    mae = Metric(
        "MAE", "lower", 3, "mean absolute error", lambda images, others: (images - others).abs().mean((1, 2, 3))
    )
    monkeypatch.setitem(METRICS, "mae", mae)
    results = measure(run, networks={})
    assert results.row("toma", 0).metrics["mae"].value == pytest.approx(0.2)
    assert "MAE ↓" in results.markdown()


class Brightness:
    """A network of one feature, beside a constant."""

    def __init__(self, source: str, device: str) -> None:
        assert (source, device) == ("nowhere", "cpu")

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        mean = to_pixels(images).mean((1, 2, 3))
        return torch.stack([mean, torch.ones_like(mean)], 1)


def test_a_network(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setitem(NETWORKS, "brightness", Known("nowhere", Brightness, "", Gives(pair="brightness")))
    results = measure(run, networks=openers(["brightness"]))
    cosine = (0.8 + 1) / (2 * (0.8**2 + 1)) ** 0.5
    assert results.row("toma", 0).metrics["brightness"].value == pytest.approx(1 - cosine, abs=1e-6)


@pytest.fixture
def command() -> Iterator[Callable[..., Any]]:
    """Adds a command, for one test."""
    commands = list(app.registered_commands)
    yield app.command("hello")
    app.registered_commands[:] = commands


def test_an_option(command: Callable[..., Any]) -> None:
    """A command may have options of its own, beside those that several have in common."""

    def hello(size: Size = None, louder: Annotated[bool, typer.Option("--louder")] = False) -> None:
        print("HELLO" if louder else "hello", read_size(size))

    command(hello)
    assert CliRunner().invoke(app, ["hello", "--size", "64x32"]).stdout == "hello (64, 32)\n"
    assert CliRunner().invoke(app, ["hello", "--louder"]).stdout == "HELLO None\n"
