from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.saved import FRUGAL, save
from tomadiff.cli.main import app

NASTY = "</title><script>alert(1)</script>"
IMAGES = ("clusters.png", "hidden_states.png", "coverage.png", "overlap.png")
DOCS = Path(__file__).parents[2] / "docs"


class Elements(HTMLParser):
    """The elements of a page, and where its images come from."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.sources += [value or "" for name, value in attrs if name == "src"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save("sdxl", tmp_path_factory.mktemp("models") / "tiny"))


def test_a_model_is_generated_told_and_measured(model: str, tmp_path: Path) -> None:
    asked = ["inspect", "-m", model, "-p", NASTY, "--ratio", "0.75", "--out", str(tmp_path), *FRUGAL, "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert sorted(Path(path).name for path in told["figures"]) == sorted(IMAGES)
    assert [level["name"] for level in told["levels"]] == [f"block {place}" for place in (0, 2, 4, 6, 8, 10)]
    for level in told["levels"]:
        assert level["kept"] == level["tokens"] // 4
        assert level["overlap"]["chance"] == 0.25
        assert [len(level[key]) for key in ("steps", "coverage", "coverage_if_fresh")] == [2, 2, 2]
        assert level["overlap"]["matrix"][0][0] == level["overlap"]["steps_apart"][0] == 1
        assert level["plan_bytes"] > 0
        assert all(0 < own["least"] <= own["median"] for own in level["milliseconds"].values())
    assert {cell["step"] for cell in told["hidden_states"]} == {0, 1}
    assert all(0 <= cell["by_chance"] <= 1 for cell in told["hidden_states"])
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    elements = Elements(page)
    assert "script" not in elements.names
    assert "&lt;script&gt;" in page
    assert len(elements.sources) == len(IMAGES)
    assert all(source.startswith("data:image/") for source in elements.sources)
    for name in IMAGES:
        with Image.open(tmp_path / name) as image:
            assert min(image.size) > 300


def test_a_method_that_plans_for_every_block_is_followed_in_some(model: str, tmp_path: Path) -> None:
    asked = ["inspect", "-m", model, "--method", "tomesd-all", "--out", str(tmp_path), *FRUGAL]
    result = CliRunner().invoke(app, asked, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "block 10" in result.output
    assert "block 1 " not in result.output
    assert "best of 20 runs on this machine" in result.output
    assert "index.html" in result.output
    assert "6 of 11 plans are shown." in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_landscape_shows_the_methods_that_are_asked_for(tmp_path: Path) -> None:
    wish = ["inspect", "--landscape", "--method", "tomesd", "--method", "todo", "--out", str(tmp_path / "new")]
    result = CliRunner().invoke(app, wish, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["todo.png", "tomesd.png"]
    assert "tomesd.png" in result.output
    with Image.open(tmp_path / "new" / "tomesd.png") as image:
        assert image.width > 2 * image.height


@pytest.mark.parametrize(
    ("wish", "answer"),
    [
        (["--method", "tome"], "'tomesd'"),
        (["--ratio", "0"], "nothing to inspect"),
        (["--prompt", " "], "prompt is empty"),
        (["--method", "toma", "--method", "tomesd"], "one method at a time"),
        (["--landscape", "--prompt", "a fox"], "painted"),
        (["--method", "tomesd", "--ratio", "0.9"], "larger stride"),
        (["--ratio", "1.5"], "share of tokens removed"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_before_anything_is_generated(
    wish: list[str], answer: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["inspect", *wish, "--out", str(tmp_path / "new")])
    assert result.exit_code == 2
    assert answer in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("page", "count", "largest"), [("methods.md", 8, 120_000), ("guide/inspect.md", 4, 500_000)])
def test_every_image_of_the_pages_is_there_and_small(page: str, count: int, largest: int) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    shown = [line.split("](")[1].rstrip(")") for line in lines if line.startswith("![")]
    assert len(shown) == count
    assert all(((DOCS / page).parent / path).stat().st_size < largest for path in shown)
