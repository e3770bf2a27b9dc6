"""Every example runs offline with ``--tiny``, three of them with the slow tests; and so does the notebook."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import common
from tests import tiny
from tomadiff.evaluation.runs import models

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("[!_]*.py") if path.stem != "common")
SLOW = ("compiled", "controlnet_lora", "own_loop")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=(pytest.mark.slow,) if name in SLOW else ()) for name in NAMES]
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


# ---------------------------------------------------------------------------------------------- the notebook
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def code_cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_stored_with_its_output() -> None:
    """In order, without an error, and small."""
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [one for cell in cells for one in cell["outputs"] if one["output_type"] == "error"]
    told = ["".join(one.get("text", "")) for cell in cells for one in cell["outputs"]]
    assert "### tomadiff doctor --gpu" in told[-1]
    assert "| apply(pipe) |" in told[-1] or "| ToMA |" in told[-1]
    assert NOTEBOOK.stat().st_size < 300_000


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its Python, on a tiny pipeline; its commands are checked with those of the pages (test_documented)."""
    small = tiny.build("sdxl")
    small.pipe.set_progress_bar_config(disable=True)
    monkeypatch.setattr(models, "load", lambda *_: small.pipe)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for number, cell in enumerate(code_cells()):
        lines = "".join(cell["source"]).splitlines()
        python = "\n".join(line for line in lines if not line.startswith(("!", "%")))
        python = python.replace("num_inference_steps=20", "num_inference_steps=8").replace(": 128", ": 64")
        exec(compile(python, f"cell {number}", "exec"), space)
    assert set(space["images"]) == {"in full", "apply(pipe)", "apply(pipe, 0.5)"}
    assert space["sheet"].size == (3 * 256, 256)
