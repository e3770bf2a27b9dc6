"""``tomadiff paper`` on a tiny pipeline: what it generates, writes and says, and that it goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.evaluation.networks import save_clip
from tests.evaluation.synthetic_runs import painted_run, thin_sd15
from tests.saved import FRUGAL, save
from tomadiff import embedded
from tomadiff.cli.main import app
from tomadiff.engine.model import MARK
from tomadiff.evaluation.paper import experiments
from tomadiff.evaluation.runs import tasks
from tomadiff.evaluation.runs.record import Run

WIDE = {"COLUMNS": "200"}
SMALL = ("--prompts", "1", "--seeds", "1", "--networks", "none", "--device", "cpu", *FRUGAL)


def invoke(out: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["paper", "--out", str(out), *arguments], env=WIDE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("sdxl", tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.slow
def test_a_table_is_made_told_and_gone_on_with(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(tmp_path, "--model", str(model), "--tables", "9", *SMALL)
    assert result.exit_code == 0, result.output
    assert "ToMA and the baselines" in result.stdout
    assert "cannot be told" in result.stdout  # with one image of each
    run = Run(tmp_path / "tiny")
    assert len(run.samples()) == 1 + 4 * 3 + 1
    assert all(sample.flops > 0 for sample in run.samples().values())
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"tiny", "figure-5-table-9.png", "figure-7.png", "paper.html", "paper.md", "paper.json"}
    assert (tmp_path / "tiny" / "report.html").exists()
    monkeypatch.setattr(tasks, "generate_batch", lambda *_: pytest.fail("generated a finished image"))
    again = invoke(tmp_path, "--model", str(model), "--tables", "9", "--json", *SMALL)
    (table,) = json.loads(again.stdout)["tables"]
    assert (table["table"], len(table["rows"]), len(table["judged"])) == (9, 14, 4)


def test_a_row_that_fails_is_told_and_the_tables_are_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tasks.generate_batch

    def breaks(pipe: Any, prompts: Any, seeds: Any, call: Any) -> Any:
        merging = pipe.unet.__dict__.get(MARK)
        if merging is not None and merging.method.unmerge == "pseudo-inverse":
            raise torch.linalg.LinAlgError("did not converge")
        return real(pipe, prompts, seeds, call)

    monkeypatch.setattr(tasks, "generate_batch", breaks)
    result = invoke(tmp_path, "--model", str(model), "--tables", "6", *SMALL)
    assert result.exit_code == 1
    assert "paper-pinv 50%, 'a fox on a blue background', seed 0 failed: did not converge" in result.stderr
    (table,) = json.loads((tmp_path / "paper.json").read_text())["tables"]
    assert [row[0][0] for row in table["rows"]] == ["in full", "ToMA (paper)"]
    assert any("did not converge" in note for note in table["notes"])
    monkeypatch.undo()
    again = invoke(tmp_path, "--model", str(model), "--tables", "6", *SMALL)
    assert again.exit_code == 0, again.output
    (table,) = json.loads((tmp_path / "paper.json").read_text())["tables"]
    assert len(table["rows"]) == 3


def test_a_table_of_steps_has_a_run_of_its_own(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 7 takes the paper's steps, here fewer, and figure 4 is made once."""
    few = tuple(replace(one, steps=3) if one.table == 7 else one for one in experiments.EXPERIMENTS)
    monkeypatch.setattr(experiments, "EXPERIMENTS", few)
    asked = ("--model", str(model), "--tables", "7", "--size", "64", *SMALL[:6])
    result = invoke(tmp_path, *asked, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "(tiny, 3 steps)" in result.stdout
    run = Run(tmp_path / "tiny-3-steps")
    assert run.config["call"]["num_inference_steps"] == 3
    assert not (tmp_path / "tiny").exists()
    assert "(The paper's figure 4.)" in (tmp_path / "paper.md").read_text()
    for forbidden in ("models.load", "tasks.generate_batch"):
        monkeypatch.setattr(f"tomadiff.evaluation.runs.{forbidden}", lambda *_: pytest.fail("generated"))
    stored = invoke(tmp_path, *asked, "--device", "cpu", "--stored")
    assert stored.exit_code == 0, stored.output
    assert "(tiny, 3 steps)" in stored.stdout
    assert (tmp_path / "figure-4.png").exists()


def test_stored_images_are_measured_afterwards_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command: networks that were not at hand look at what was generated."""
    monkeypatch.setattr("tomadiff.evaluation.runs.models.load", lambda *_: pytest.fail("loaded a model"))
    painted_run(tmp_path / "emoji-sdxl", ["a fox", "an owl"], ("paper-whole",), size=32)
    painted_run(tmp_path / "others", ["a pig", "a cat"], size=32)
    clip = save_clip(tmp_path / "clip")
    given = ("--stored", "--networks", f"clip={clip}", "--reference", str(tmp_path / "others"))
    result = invoke(tmp_path, "--tables", "6,10", *given)
    assert result.exit_code == 0, result.output
    unmerge, transformers = json.loads((tmp_path / "paper.json").read_text())["tables"]
    assert {"CLIP-I ↓", "CLIP-T ↑"} <= set(unmerge["headings"])
    assert [row[0][0] for row in unmerge["rows"]] == ["in full", "ToMA (paper)"]
    assert any("paper-pinv 50%" in note for note in unmerge["notes"])  # what is not there is told
    assert transformers["rows"] == []
    assert (tmp_path / "paper.html").exists()
    again = invoke(tmp_path, "--tables", "6", "--stored", "--networks", "none")
    assert again.exit_code == 0, again.output
    (unmerge,) = json.loads((tmp_path / "paper.json").read_text())["tables"]
    assert "CLIP-T ↑" in unmerge["headings"]  # what was measured stays


def test_merging_alone_needs_no_model(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--tables", "5", "--rounds", "1", "--json", "--device", "cpu")
    assert result.exit_code == 0, result.output
    (table,) = json.loads(result.stdout)["tables"]
    assert table["headings"][1] == "ToMeSD (package)"
    assert len(table["rows"]) == 3 * 2


@pytest.mark.slow
def test_an_architecture_is_timed_and_its_images_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    asked = ("--arch", "sd15", "--tables", "6", "--size", "64", "--depth", "1", "--rounds", "1", "--device", "cpu")
    result = invoke(tmp_path, *asked, "--json")
    assert result.exit_code == 0, result.output
    (table,) = json.loads(result.stdout)["tables"]
    alike, faster = table["judged"]
    assert (alike["verdict"], faster["verdict"]) == ("not tested", "cannot be told")
    assert "Weights are random" in table["notes"][1]


def test_embedded_weights_that_are_missing_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "__file__", str(tmp_path / "nowhere" / "__init__.py"))
    result = invoke(tmp_path / "out", "--tables", "2,10", *SMALL)
    assert result.exit_code == 0, result.output
    assert "weights of emoji-sdxl are not in" in " ".join(result.stdout.split())
    assert "Table 10: diffusion transformers (emoji-flux)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--tables", "12"], 2, "tables='12' is not possible"),
        (["--arch", "sdxl", "--model", "emoji-sdxl"], 2, "not both"),
        (["--arch", "sd9", "--tables", "1"], 2, "choose one of"),
        (["--model", "no-such-model"], 1, "There is no model 'no-such-model'"),
        (["--prompts-from", "/no/such/file.txt"], 1, "there is no such file"),
        (["--reference", "/no/such/folder"], 2, "is not a folder"),
        (["--arch", "sdxl", "--stored"], 2, "leave one of them out"),
        (["--networks", "oracle"], 2, "network='oracle' is not known"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, line: str, tmp_path: Path) -> None:
    result = invoke(tmp_path / "out", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.output
    assert line in result.stderr
