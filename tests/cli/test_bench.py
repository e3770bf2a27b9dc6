"""``tomadiff bench`` on a tiny pipeline and on a small cut of an exact architecture."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import tiny
from tests.evaluation.synthetic_runs import thin_sd15
from tomadiff.cli.main import app
from tomadiff.evaluation.runs import models

WIDE = {"COLUMNS": "200"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = tiny.build("sdxl")
    generated.pipe.set_progress_bar_config(disable=True)
    monkeypatch.setattr(models, "load", lambda *_, **__: generated.pipe)
    monkeypatch.setattr(models, "settings", lambda _: {"num_inference_steps": 2, **generated.settings})


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_pipeline_over_sizes(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    asked = [
        "bench",
        "--ratios",
        "0.5",
        "--size",
        "64,96",
        "--rounds",
        "1",
        "--csv",
        str(path),
    ]
    result = CliRunner().invoke(app, asked, env=WIDE)
    assert result.exit_code == 0, result.output
    assert "random" not in result.output
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["size"], row["method"]) for row in rows] == [
        ("64", "full"), ("64", "toma"), ("96", "full"), ("96", "toma"),
    ]  # fmt: skip
    assert float(rows[1]["flops"]) < float(rows[0]["flops"]) < float(rows[2]["flops"])


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_forecasts_are_timed_too() -> None:
    asked = ["bench", "--methods", "full", "--ratios", "0.5", "--forecast", "0.9", "--steps", "8", "--rounds", "1"]
    result = CliRunner().invoke(app, [*asked, "--json"], env=WIDE)
    assert result.exit_code == 0, result.output
    base, forecast = json.loads(result.stdout)["rows"]
    assert (base["method"], forecast["method"]) == ("full", "forecast-0.9")
    assert forecast["flops"] < base["flops"]


@pytest.mark.slow
def test_an_architecture_says_that_its_weights_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    asked = [
        "bench",
        "--arch",
        "sd15",
        "--size",
        "64",
        "--depth",
        "1",
        "--ratios",
        "0.5",
        "--methods",
        "toma-paper",
        "--rounds",
        "1",
    ]
    result = CliRunner().invoke(app, [*asked, "--json", "--device", "cpu"], env=WIDE)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["weights"] == "random"
    base, merged = told["rows"]
    assert set(merged["parts"]) == {"selecting", "reweighing", "plain"}
    assert merged["flops"] < base["flops"]
    assert merged["unit"] == "step"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--arch", "sd9"], "choose one of"),
        (["--arch", "sd15", "--forecast", "0.1"], "forecasts leave steps out"),
        (["--arch", "sd15", "--size", "60", "--depth", "1"], "multiple of"),
        (["--arch", "sd15", "--size", "wide"], "is not possible"),
        (["--ratios", "2"], "not possible"),
        (
            ["--methods", "magic", "--arch", "sd15", "--size", "64", "--depth", "1"],
            "choose one of",
        ),
    ],
)
def test_bad_input_is_one_line(asked: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    result = CliRunner().invoke(app, ["bench", *asked], env=WIDE)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output
