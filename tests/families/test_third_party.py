"""A family from outside: the one that ``docs/adding/a_model.md`` adds, run as it stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tomadiff
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.families.registry import unregister

PAGE = Path(__file__).parents[2] / "docs" / "adding" / "a_model.md"


def code_of(page: Path) -> dict[str, Any]:
    """What the Python blocks of a page define, taken together."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile("\n".join(blocks), str(page), "exec"), names)
    return names


EXAMPLE = code_of(PAGE)
MOSAIC, MosaicModel, generate = EXAMPLE["MOSAIC"], EXAMPLE["MosaicModel"], EXAMPLE["generate"]
unregister("mosaic")  # the page registered it; tests do so one by one

TestMosaic = EXAMPLE["TestMosaic"]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    tomadiff.register(MOSAIC)
    yield
    unregister("mosaic")


def test_it_generates() -> None:
    model, image, text = MosaicModel().eval(), torch.randn(1, 3, 16, 16), torch.randn(1, 5, 16)
    merged = generate(model, image, text)
    with torch.no_grad():
        assert not torch.equal(merged, model(image, torch.tensor([500.0]), text))


def test_it_is_listed() -> None:
    assert MOSAIC in tomadiff.supported()
    with pytest.raises(UnsupportedModelError, match=r"Mosaic \(MosaicModel\)"):
        tomadiff.apply(torch.nn.Linear(1, 1))


def test_subclasses_count() -> None:
    with tomadiff.apply(type("Larger", (MosaicModel,), {})(), 0.5) as patch:
        assert patch.report().models[0].family == "Mosaic"


def test_names_are_taken_once() -> None:
    with pytest.raises(SettingError, match="exists already"):
        tomadiff.register(MOSAIC)
    tomadiff.register(MOSAIC, replace=True)


def test_unknown_blocks_are_named() -> None:
    model = MosaicModel()
    model.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    with pytest.raises(UnsupportedModelError, match="classes: Linear; known in this family: MosaicBlock"):
        tomadiff.apply(model, 0.5)


def test_some_unknown_blocks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = MosaicModel()
    model.layers.append(torch.nn.Linear(1, 1))
    with tomadiff.apply(model, 0.5) as patch:
        assert [level.sites for level in patch.report().models[0].levels] == [3, 3]
    assert caplog.text.count("blocks of the class Linear are not known") == 1


def test_arguments_may_have_other_names() -> None:
    class Renamed(MosaicModel):  # type: ignore[valid-type, misc]
        def forward(self, x: Any, t: Any, text: Any) -> Any:
            return super().forward(x, t, text)

    with tomadiff.apply(Renamed().eval(), 0.5) as patch, torch.no_grad():
        patch._models[0].model(x=torch.randn(1, 3, 16, 16), t=torch.tensor([500.0]), text=torch.randn(1, 5, 16))
        assert patch.report().models[0].merged
