from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tomadiff.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_inspect_draws_the_methods_that_are_asked_for(tmp_path: Path) -> None:
    wish = ["inspect", "--method", "tomesd", "--method", "todo", "--out", str(tmp_path / "new")]
    result = CliRunner().invoke(app, wish, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["todo.png", "tomesd.png"]
    assert "tomesd.png" in result.output
    with Image.open(tmp_path / "new" / "tomesd.png") as picture:
        assert picture.width > 2 * picture.height


@pytest.mark.parametrize(
    ("wish", "answer"),
    [
        (["--method", "tome"], "'tomesd'"),
        (["--method", "tomesd", "--ratio", "0.9"], "larger stride"),
        (["--ratio", "1.5"], "share of tokens removed"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_before_anything_is_drawn(
    wish: list[str], answer: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["inspect", *wish, "--out", str(tmp_path / "new")])
    assert result.exit_code == 2
    assert answer in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "new").exists()


def test_every_picture_of_the_page_is_there_and_small() -> None:
    shown = [line.split("](")[1].rstrip(")") for line in PAGE.read_text(encoding="utf-8").splitlines() if "![" in line]
    assert len(shown) == 7
    assert all((PAGE.parent / path).stat().st_size < 120_000 for path in shown)
