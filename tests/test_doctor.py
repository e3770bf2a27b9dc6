import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tomadiff
from tests.saved import save
from tomadiff.cli import doctor
from tomadiff.cli.main import app
from tomadiff.evaluation.timing import gpu


def test_healthy() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert tomadiff.__version__ in result.output
    assert "FluxTransformer2DModel" in result.output
    assert result.output.count("✓") >= len(doctor.CHECKS)
    assert "✗" not in result.output


def test_for_machines() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = json.loads(result.output)
    assert findings["healthy"] is True
    assert findings["versions"]["tomadiff"] == tomadiff.__version__
    assert findings["devices"][0].startswith("cpu")


def test_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setitem(doctor.CHECKS, "remove bit-exactly", fail)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "✗ remove bit-exactly on cpu: RuntimeError: no such instruction" in result.output


def test_what_merging_breaks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks look at results: a patch that does nothing, or does not come off, is ill."""
    monkeypatch.setattr("tomadiff.engine.group.PlanGroup.merge", lambda _, tokens: 1 / 0)
    (plan, applied, removed, *_) = doctor.self_test()
    assert (plan.passed, applied.passed, removed.passed) == (True, False, False)
    monkeypatch.undo()
    monkeypatch.setattr("tomadiff.engine.model.eject", lambda _: None)
    assert [check.passed for check in doctor.self_test()[:3]] == [True, True, False]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "a-package-that-nobody-has"))
    found = doctor.versions()
    assert found["torch"]
    assert found["a-package-that-nobody-has"] is None


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_line_says_so() -> None:
    result = CliRunner().invoke(app, ["doctor", "--gpu"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "There is no GPU that torch" in result.output
    assert "--device cpu" in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_gpu_is_measured_as_one_block_of_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, with a tiny pipeline: what is measured is the same, but for the kernels."""
    for name, value in (("METHODS", ("toma", "todo")), ("RATIOS", (0.5,)), ("ROUNDS", 1)):
        monkeypatch.setattr(gpu, name, value)
    model = save("sdxl", tmp_path / "tiny")
    result = CliRunner().invoke(app, ["doctor", "--gpu", "-m", str(model), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    told = result.stdout
    assert told.startswith("### tomadiff doctor --gpu")
    assert "| self-test | all passed |" in told
    assert "plain torch does the work" in told
    rows = [line for line in told.splitlines() if "× |" in line]
    assert len(rows) == 4, "in full, apply(pipe), ToMA, ToDo"
    assert any(row.startswith("| apply(pipe) |") for row in rows)
    assert all(row.count("|") == 7 for row in rows)
