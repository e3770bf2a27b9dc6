"""``tomadiff demo`` and ``tomadiff report``, on a tiny pipeline and on none."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests import tiny
from tests.evaluation.synthetic_runs import painted_run
from tomadiff.cli.main import app
from tomadiff.embedded import MissingWeightsError
from tomadiff.evaluation.runs import models

WIDE = {"COLUMNS": "200"}


def missing(*_: Any, **__: Any) -> Any:
    raise MissingWeightsError("not here")


def test_without_weights_a_synthetic_image_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", missing)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env=WIDE)
    assert result.exit_code == 0, result.output
    assert "synthetic image stands in" in result.output
    assert "ToMA on an image of 64×64 tokens" in result.output
    assert "4096" in result.output
    with Image.open(tmp_path / "merge_map.png") as image:
        assert image.width > image.height


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command, with a tiny pipeline of few blocks in the place of the trained one."""
    small = tiny.build("pixart")
    small.pipe.set_progress_bar_config(disable=True)
    monkeypatch.setattr(models, "load", lambda *_, **__: small.pipe)
    monkeypatch.setattr(models, "settings", lambda _: {**small.settings, "num_inference_steps": 2})
    return ["demo", "--out", str(tmp_path), "--prompt", "a fox", "--prompt", "<script>"]


def test_with_weights_everything_is_written_and_said(asked: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, asked, env=WIDE)
    assert result.exit_code == 0, result.output
    for name in ("index.html", "grid.png", "merge_map.png"):
        assert name in result.output
        assert (tmp_path / name).stat().st_size > 1000
    for way in ("in full", "apply(pipe)", "speedup=2.5", "ToMA, 25%", "ToMA, 75%"):
        assert way in result.output
    assert result.output.count("×") >= 4, "a speed-up of each way but the full one"


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_begins_anew(asked: list[str]) -> None:
    for _ in range(2):
        result = CliRunner().invoke(app, asked, env=WIDE)
        assert result.exit_code == 0, result.output


def test_report_writes_the_page_next_to_its_table(tmp_path: Path) -> None:
    run = painted_run(tmp_path / "run")
    out = tmp_path / "made" / "page.html"
    result = CliRunner().invoke(app, ["report", str(run.folder), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert Path(told["page"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path(told["table"]).read_text(encoding="utf-8").startswith("# Token merging")
    assert len(told["runs"]["run"]["rows"]) == 4


def test_report_of_nothing_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not a run" in result.output
    assert "Traceback" not in result.output
