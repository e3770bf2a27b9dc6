from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

import tomadiff
from tomadiff.cli import app


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"tomadiff {tomadiff.__version__}"


def test_demo_writes_the_merge_map_and_says_where(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "4096" in result.output
    assert "merge_map.png" in result.output
    with Image.open(tmp_path / "merge_map.png") as picture:
        assert picture.width > picture.height
