"""A method from outside: the one that ``docs/adding/a_method.md`` adds, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny
from tomadiff import Grid, apply
from tomadiff.errors import SettingError
from tomadiff.evaluation.report.figures import merge_sample
from tomadiff.evaluation.runs.synthetic_image import synthetic_image

PAGE = Path(__file__).parents[2] / "docs" / "adding" / "a_method.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Every name that the code of the page defines."""
    names: dict[str, Any] = {"__name__": __name__}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (1, 1), (2, 3, 2)])
@pytest.mark.parametrize("length", [2, 3, 100])
def test_it_plans_on_any_grid(page: dict[str, Any], size: tuple[int, ...], length: int) -> None:
    grid = Grid(*size)
    tokens = torch.randn(2, grid.tokens, 3)
    plan = page["Runs"](length=length).plan(tokens, grid)
    runs = [tokens[:, start : start + length].mean(1) for start in range(0, grid.tokens, length)]
    torch.testing.assert_close(plan.merge(tokens), torch.stack(runs, 1))
    assert torch.equal(plan.unmerge(plan.merge(tokens))[:, 0], plan.merge(tokens)[:, 0])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_harness_does_the_rest(page: dict[str, Any], family: str) -> None:
    generated = tiny.build(family)
    generated.steps = 2
    base = generated.draw()
    with apply(generated.pipe, page["Runs"]()) as patch:
        assert not torch.equal(generated.draw(), base)
        report = patch.report().models[0]
        assert report.merged
        assert not report.bypassed
    assert torch.equal(generated.draw(), base)


def test_the_call_of_the_page(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    generated = tiny.build("sdxl")
    generated.pipe.set_progress_bar_config(disable=True)
    assert page["use"](generated.pipe).width == 64
    assert "level 0" in capsys.readouterr().out


def test_its_settings_are_checked(page: dict[str, Any]) -> None:
    assert page["Runs"](length=4).ratio == 0.75
    with pytest.raises(SettingError, match="length=1"):
        page["Runs"](length=1)


def test_its_image(page: dict[str, Any]) -> None:
    assert merge_sample(synthetic_image(64), page["Runs"](), side=16, repeats=1).kept == 128
