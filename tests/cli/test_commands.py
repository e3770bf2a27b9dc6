"""``tomadiff generate`` and ``tomadiff eval``: what they write and print, and what they say to bad input."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.evaluations import EVAL, assert_same, start
from tests.evaluation.networks import Means, save_clip
from tests.evaluation.synthetic_runs import painted_run
from tests.saved import FRUGAL, save
from tomadiff.cli.main import app
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.metrics.table import Results
from tomadiff.evaluation.runs import tasks
from tomadiff.evaluation.runs.record import Run, RunError, note_of

Invoke = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("sdxl", tmp_path_factory.mktemp("models") / "sdxl")


@pytest.fixture
def invoke(model: Path, tmp_path: Path) -> Invoke:
    """Run a command with the tiny model and a folder of its own, unless told."""

    def call(command: str, *arguments: str, model: Any = model, out: Any = tmp_path / "run") -> Any:
        options = [command, "--model", str(model), "--out", str(out), *arguments]
        return CliRunner().invoke(app, options, env={"COLUMNS": "200"})

    return call


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An evaluation that nobody interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    result = CliRunner().invoke(app, ["eval", "--model", str(model), "--out", str(folder), *EVAL])
    assert result.exit_code == 0, result.output
    return Run(folder)


# ---------------------------------------------------------------------------------------------- generate
def test_generate_writes_images_that_more_may_join(invoke: Invoke, tmp_path: Path) -> None:
    first = invoke("generate", "-p", "a fox", "-p", "a <script>", "--compare", "--batch", "2", *FRUGAL)
    assert first.exit_code == 0, first.output
    assert str(tmp_path / "run" / "images") in first.output
    second = invoke("generate", "-p", "a fox", "--method", "tomesd", "--seed", "5", "--json", *FRUGAL)
    (image,) = json.loads(second.stdout)["images"]
    assert (image["method"], image["seed"]) == ("tomesd", 5)
    note = note_of(Path(image["path"]))
    assert note["call"]["num_inference_steps"] == 2
    assert note["prompt"] == "a fox"
    assert len(Run(tmp_path / "run").samples()) == 5


def test_generate_forecasts_steps_and_says_which(invoke: Invoke) -> None:
    many = ("--method", "full", "--forecast", "1", "--steps", "8", "--size", "64", "--json")
    generated = invoke("generate", "-p", "a fox", *many)
    assert generated.exit_code == 0, generated.output
    (image,) = json.loads(generated.stdout)["images"]
    note = note_of(Path(image["path"]))
    assert image["method"] == "forecast-1"
    assert note["forecast"]["tolerance"] == 1
    assert set(range(4)) <= set(note["forecast"]["computed"]) < set(range(8))
    assert 0 < note["forecast"]["estimated error"] < 1
    refused = invoke("generate", "-p", "a fox", "--forecast", "7", *FRUGAL)
    assert refused.exit_code != 0
    assert "tolerance=7.0 is not possible" in refused.output


@pytest.mark.slow
def test_generate_keeps_a_budget(invoke: Invoke) -> None:
    generated = invoke("generate", "-p", "a fox", "--flops", "0.9", "--json", *FRUGAL)
    assert generated.exit_code == 0, generated.output
    (image,) = json.loads(generated.stdout)["images"]
    assert image["method"] == "recommended-flops=0.9"
    assert 0 < image["ratio"] < 1
    note = note_of(Path(image["path"]))
    assert f"ratio={image['ratio']}" in note["settings"]
    for more, message in (
        (("--ratio", "0.5"), "Both --ratio 0.5 and flops=0.9"),
        (("--speedup", "2"), "Give one budget"),
        (("--method", "full"), "In full nothing is left out"),
    ):
        refused = invoke("generate", "-p", "a fox", "--flops", "0.9", *more, *FRUGAL)
        assert refused.exit_code != 0
        assert message in refused.output


def test_generate_refuses_a_folder_generated_otherwise(invoke: Invoke) -> None:
    assert invoke("generate", "-p", "a fox", *FRUGAL).exit_code == 0
    again = invoke("generate", "-p", "a fox", "--steps", "3", "--size", "64")
    assert again.exit_code == 1
    assert "other settings (call)" in again.stderr


def test_a_run_under_an_old_name_of_a_model_is_not_gone_on_with(tmp_path: Path) -> None:
    Run.begin(tmp_path, {"model": "sdxl", "batch": 1}, {})
    with pytest.raises(RunError, match=r"other settings \(model was 'sdxl'\)"):
        Run.begin(tmp_path, {"model": "emoji-sdxl", "batch": 1}, {})


# ---------------------------------------------------------------------------------------------- eval
def test_eval_generates_measures_and_says_where(whole: Run) -> None:
    samples = whole.samples().values()
    assert len(samples) == 2 * 2 * 2
    assert all("psnr" in sample.metrics for sample in samples if sample.method == "toma")
    counted = {sample.method: sample.flops for sample in samples}
    assert 0 < counted["toma"] < counted["full"]
    assert "FLOPs per image" in (whole.folder / "report.html").read_text(encoding="utf-8")
    assert {path.name for path in whole.folder.iterdir()} >= {
        "run.json",
        "results.jsonl",
        "summary.json",
        "report.html",
    }
    assert whole.config["methods"] == ["toma"]
    assert whole.environment["processes"] == 1


def test_eval_measures_forecasts_and_the_report_names_them(invoke: Invoke, tmp_path: Path) -> None:
    few = ("--limit", "1", "--seeds", "1", "--steps", "8", "--size", "64", "--networks", "none", "--device", "cpu")
    result = invoke("eval", "--methods", "full", "--forecast", "0,1", *few)
    assert result.exit_code == 0, result.output
    counted = {sample.method: sample.flops for sample in Run(tmp_path / "run").samples().values()}
    assert 0 < counted["forecast-1"] < counted["full"]
    for written in (result.stdout, (tmp_path / "run" / "report.html").read_text(encoding="utf-8")):
        assert "forecast 1" in written


def test_eval_again_generates_nothing(whole: Run, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "generate_batch", lambda *_: pytest.fail("generated a finished image"))
    table = invoke("eval", *EVAL, out=whole.folder)
    assert table.exit_code == 0, table.output
    assert "PSNR" in table.stdout
    assert "report.html" in table.stdout
    printed = invoke("eval", *EVAL, "--json", out=whole.folder)
    assert Results.from_json(printed.stdout) == Results.load(whole.folder)


def test_a_network_that_cannot_be_had_is_told_and_the_rest_runs(whole: Run, invoke: Invoke) -> None:
    arguments = [argument if argument != "none" else "clip=/no/such/folder" for argument in EVAL]
    result = invoke("eval", *arguments, out=whole.folder)
    assert result.exit_code == 0, result.output
    assert "not measured: clip_i, clip_t" in result.stdout
    assert "PSNR" in result.stdout


# ---------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--ratios", "0.5,1.5"], 2, "ratio=1.5 is not possible"),
        (["--ratios", "half"], 2, "ratio='half' is not a number"),
        (["--methods", "tomasd"], 2, "method='tomasd' is not known"),
        (["--forecast", "0,1.5"], 2, "tolerance=1.5 is not possible"),
        (["--forecast", "much"], 2, "forecast='much' is not a number"),
        (["--methods", ","], 2, "',' names nothing"),
        (["--size", "big"], 2, "size='big' is not a size"),
        (["--size", "64x64x64"], 2, "size='64x64x64' is not a size"),
        (["--protocol", "paper"], 2, "protocol='paper' needs the prompts of GEMRec"),
        (["--protocol", "ours"], 2, "protocol='ours' is not known"),
        (["--networks", "oracle"], 2, "network='oracle' is not known"),
        (["--reference", "/no/such/folder"], 2, "reference='/no/such/folder' is not a folder"),
        (["--dtype", "int3"], 2, "dtype='int3' is not known"),
        (["--device", "toaster"], 1, "device='toaster' is not known"),
        (["--prompts", "/no/such/file.txt"], 1, "/no/such/file.txt: there is no such file"),
    ],
)
def test_bad_input_is_one_line(invoke: Invoke, tmp_path: Path, arguments: list[str], code: int, line: str) -> None:
    result = invoke("eval", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.output
    assert line in result.stderr
    assert not (tmp_path / "run").exists()


def test_no_steps_are_a_wrong_use(invoke: Invoke) -> None:
    result = invoke("eval", "--steps", "0")
    assert (result.exit_code, "--steps" in result.stderr) == (2, True)


def test_bad_prompt_files_are_one_line(invoke: Invoke, tmp_path: Path) -> None:
    for name, text, line in (("empty.txt", "", "holds no prompt"), ("torn.csv", "prompt,tag\na fox\n", "line 2")):
        file = tmp_path / name
        file.write_text(text)
        result = invoke("eval", "--prompts", str(file))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert line in result.stderr


def test_a_missing_model_is_one_line(invoke: Invoke) -> None:
    for command in (("eval",), ("generate", "-p", "a fox")):
        result = invoke(*command, model="no-such-model")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert "There is no model 'no-such-model'" in result.stderr


def test_pickled_weights_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    model = save("sd15", tmp_path / "pickled", safetensors=False)
    result = invoke("eval", *EVAL, model=model)
    assert result.exit_code == 1
    assert "--allow-pickle" in result.stderr


def test_an_empty_prompt_is_refused(invoke: Invoke) -> None:
    result = invoke("generate", "-p", " ")
    assert (result.exit_code, "A prompt is empty" in result.stderr) == (2, True)


def test_an_unwritable_folder_is_one_line(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    for command in (("eval", *EVAL), ("generate", "-p", "a fox", *FRUGAL)):
        result = invoke(*command, out=file / "run")
        assert result.exit_code == 2
        assert f"Cannot write to {file / 'run'}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tune", "-m", "MODEL", "--out", "HERE/nowhere/x.json"], "there is no folder"),
        (["tune", "-m", "MODEL", "--out", "HERE"], "is a folder"),
        (["tune", "-m", "MODEL", "--out", "HERE/x.png"], "the chart is written there"),
        (["bench", "-m", "MODEL", "--csv", "HERE/file/x.csv"], "is not a folder"),
        (["bench", "-m", "MODEL", "--csv", "HERE"], "is a folder"),
        (["paper", "-m", "MODEL", "--out", "HERE/file/paper"], "is not a folder"),
        (["inspect", "-m", "MODEL", "--out", "HERE/file"], "is not a folder"),
        (["demo", "--out", "HERE/file"], "is not a folder"),
        (["report", "MODEL", "--out", "HERE/x.md"], "the table is written there"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_loaded(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("tomadiff.evaluation.runs.models.load", load)
    (tmp_path / "file").write_text("in the way")
    asked = [one.replace("HERE", str(tmp_path)).replace("MODEL", "emoji-sdxl") for one in arguments]
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert told in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_what_was_done(
    whole: Run, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, images = os.fsync, tmp_path / "run" / "images"

    def sync_some(file: int) -> None:
        if len(list(images.glob("[!.]*.png"))) == 3 and list(images.glob(".*")):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", sync_some)
    result = invoke("eval", *EVAL)
    assert result.exit_code == 1
    assert "The disk is full. What was finished is kept" in result.stderr
    run = Run(tmp_path / "run")
    assert len(run.samples()) == 3
    assert not list(images.glob(".*"))
    monkeypatch.undo()
    assert invoke("eval", *EVAL).exit_code == 0
    assert_same(whole, run)


# ---------------------------------------------------------------------------------------------- processes
@pytest.mark.slow
def test_two_processes_give_what_one_gives(whole: Run, model: Path, tmp_path: Path) -> None:
    # --multi_gpu is what makes accelerate start more than one process without MPI; on CPUs they talk over gloo.
    launcher = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", "-m")
    process = start(model, tmp_path / "run", *launcher)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    run = Run(tmp_path / "run")
    assert run.environment["processes"] == 2
    assert (run.folder / "results-1.jsonl").exists()
    assert_same(whole, run)


def test_networks_look_at_a_stored_run_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is generated, and what was measured before stays."""
    monkeypatch.setattr("tomadiff.evaluation.runs.models.load", lambda *_: pytest.fail("loaded a model"))
    run = painted_run(tmp_path / "run", size=32)
    measure(run, networks={"mine": Means})
    clip = save_clip(tmp_path / "clip")
    result = CliRunner().invoke(app, ["report", str(run.folder), "--networks", f"clip={clip}", "--json"])
    assert result.exit_code == 0, result.output
    columns = Results.load(run.folder).columns
    assert {"clip_t", "mine", "mine_fid", "mse"} <= set(columns)
    assert "CLIP-T" in (run.folder / "report.md").read_text()
    alone = CliRunner().invoke(app, ["report", str(run.folder), "--reference", str(run.images)])
    assert alone.exit_code == 2
    assert "name the networks" in alone.stderr
