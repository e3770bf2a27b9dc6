"""What was asked for is done or refused in a line: nothing is silently chosen otherwise."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders import single_file_model, single_file_utils
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests import tiny
from tests.saved import FRUGAL, save
from tomadiff.cli.main import app
from tomadiff.evaluation.runs import models

GENERATE = ("generate", "-m", "emoji-sdxl", "-p", "a fox")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*GENERATE, "--method", "todo", "--ratio", "0.5"), "ToDo has a ratio of its own, 0.75"),
        ((*GENERATE, "--method", "full", "--ratio", "0.5"), "In full, nothing merges"),
        ((*GENERATE, "--method", "tomasd"), "did you mean 'tomesd'?"),
        (("eval", "-m", "emoji-sdxl", "--methods", "todo", "--ratios", "0.5"), "ToDo has a ratio of its own"),
        (("bench", "--methods", "full", "--ratios", "0.5"), "In full, nothing merges"),
        (("bench", "--methods", "recommended", "--ratios", "0.5"), "What is recommended merges nothing"),
        (("inspect", "--method", "todo", "--ratio", "0.5"), "ToDo has a ratio of its own"),
        (("bench", "--model", "emoji-flux", "--arch", "sdxl"), "Give --model emoji-flux to time a pipeline or --arch"),
        (("bench", "--arch", "sdxl", "--steps", "4"), "--steps does not go with --arch"),
        (("bench", "--batch", "2"), "--batch does not go with --model"),
    ],
)
def test_what_goes_not_together_is_told_before_anything_is_loaded(
    arguments: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    result = CliRunner().invoke(app, list(arguments))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert told in result.stderr


@pytest.mark.parametrize("command", ["generate", "eval", "bench", "tune", "paper", "doctor"])
def test_flags_are_shown_without_a_type(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    assert "--json" in told.output
    assert "<bool>" not in told.output


@pytest.mark.parametrize(("family", "size", "least"), [("sdxl", "65", "64x64"), ("flux", "64x68", "64x64")])
def test_a_size_that_is_not_possible_is_one_line(
    family: str, size: str, least: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = tiny.build(family)
    monkeypatch.setattr(models, "load", lambda *_, **__: small.pipe)
    result = CliRunner().invoke(app, [*GENERATE, "--steps", "2", "--size", size, "--out", str(tmp_path)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert least in result.stderr


# ---------------------------------------------------------------------------------------------- models
@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stable Diffusion 1.5 in a single file, with the names that diffusers looks for."""
    pipe = tiny.build("sd15").pipe
    weights = {**pipe.unet.state_dict(), **pipe.vae.state_dict()}
    for name, value in pipe.text_encoder.state_dict().items():
        weights[f"cond_stage_model.transformer.text_model.{name.removeprefix('text_model.')}"] = value
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.safetensors"
    save_file({name: value.clone() for name, value in weights.items()}, path)
    return path


def test_a_single_file_generates(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {"pretrained_model_name_or_path": str(save("sd15", tmp_path / "folder"))}
    monkeypatch.setitem(single_file_utils.DIFFUSERS_DEFAULT_PIPELINE_PATHS, "v1", known)
    # The names of a tiny model need no translation; translating the original ones is tested by diffusers.
    monkeypatch.setattr(
        single_file_model, "_should_convert_state_dict_to_diffusers", lambda own, all_: own.keys() - all_.keys()
    )
    asked = ["generate", "-m", str(checkpoint), "-p", "a fox", "--out", str(tmp_path / "out"), *FRUGAL]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    own, loaded = (one.unet.state_dict() for one in (tiny.build("sd15").pipe, models.load(checkpoint, "cpu")))
    assert all(torch.equal(own[name], loaded[name]) for name in own)


def test_files_that_are_no_whole_checkpoint_are_one_line(checkpoint: Path, tmp_path: Path) -> None:
    notes, pickled = tmp_path / "notes.txt", tmp_path / "model.ckpt"
    for path in (notes, pickled):
        path.write_text("a fox")
    for path, told in ((notes, "is no checkpoint"), (pickled, "--allow-pickle"), (checkpoint, "HF_HUB_OFFLINE")):
        result = CliRunner().invoke(app, ["generate", "-m", str(path), "-p", "a fox"])
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        assert told in result.stderr


@pytest.mark.slow
def test_without_a_network_a_hub_id_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as closed:  # a port that nobody listens at
        closed.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{closed.getsockname()[1]}"
    environment: dict[str, Any] = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": place, "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tomadiff", "generate", "-m", "owner/name", "-p", "a fox"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "owner/name is not on this machine, and the hub cannot be reached" in done.stderr
