"""Every example runs offline with ``--tiny``; all of them but a few with the slow tests."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from examples import common

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("[!_]*.py") if path.stem not in ("common", "notebook"))
QUICK = ("flux2", "sdxl")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow,)) for name in NAMES]
)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(f"examples.{name}")
    if name == "own_loop":
        module.main()
    else:
        monkeypatch.setattr(sys, "argv", [name, "--tiny"])
        common.run(module.load, module.tiny, module.WAYS)
    told = capsys.readouterr().out
    assert "nan" not in told
    assert told.count("from the full image") == len(getattr(module, "WAYS", ()))
