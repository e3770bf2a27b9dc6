"""Every command that a page shows is run, smaller; or it stands in a table that says where it runs, or why not."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.evaluation.synthetic_runs import painted_run
from tests.saved import save
from tests.shown.pages import ROOT, Shown, commands
from tests.shown.tables import GPU, HOURS, HUB, NOT_HERE, SMALLER, here, matching
from tomadiff.cli.main import app
from tomadiff.evaluation.runs import models

QUICK = (
    "tomadiff models",
    "tomadiff report run",
    "tomadiff eval --help",
    "tomadiff generate -m owner/name -p 'a fox' --compare",
    "tomadiff generate --forecast 0.1",
    "tomadiff eval -m owner/name --prompts prompts.txt",
    "tomadiff inspect --model owner/name --prompt 'a lighthouse' --steps 30",
)
"""Commands that run in the default suite too; all others are slow."""
PROMPTS = {
    "prompts.txt": "a fox\n",
    "GEMRec.csv": "prompt,tag\na fox,animal\n",
    "PartiPrompts.tsv": "Prompt\tCategory\na fox\tanimal\n",
}


def line_of(shown: Shown) -> str:
    """What a table looks at."""
    return shlex.join(shown.words).replace("'", "")


def distinct() -> dict[str, Shown]:
    """Commands by their words, each once however many pages show it."""
    return {shlex.join(shown.words): shown for shown in commands()}


RUN = [line for line, shown in distinct().items() if matching(line_of(shown), dict(NOT_HERE)) is None]


# ---------------------------------------------------------------------------------------------- in neither table
@pytest.mark.parametrize("shown", commands(), ids=lambda shown: f"{shown.page}: {shown.command}")
def test_a_table_knows_every_command(shown: Shown) -> None:
    """A new command of a page needs a line in :mod:`tests.shown.tables`, and a mark beside it where it is not run."""
    line = line_of(shown)
    pattern = matching(line, dict(NOT_HERE))
    if pattern is None:
        words = here(shown.words, {"tiny": "tiny", "folder": "."})
        assert words is not None, f"{shown.page} shows {line!r}: how is it run?"
        parse(words)
    elif NOT_HERE[pattern].reason in (GPU, HUB):
        assert re.search(r"GPU|hub", shown.around), (
            f"{shown.page} does not say that {line!r} {NOT_HERE[pattern].reason}"
        )
    elif NOT_HERE[pattern].reason == HOURS:
        assert "hours" in shown.around, f"{shown.page} does not say that {line!r} {HOURS}"


def parse(words: list[str]) -> None:
    """Fail for a command or an option of ``tomadiff`` that there is not, without running it."""
    if words[0] == "tomadiff" and "--help" not in words:
        group: Any = typer.main.get_command(app)
        context = group.make_context("tomadiff", ["--version"], resilient_parsing=True)
        command = group.get_command(context, words[1])
        assert command is not None, words
        command.make_context(words[1], words[2:], parent=context)


@pytest.mark.parametrize("pattern", NOT_HERE)
def test_what_is_not_run_here_runs_where_the_table_says(pattern: str) -> None:
    proof = NOT_HERE[pattern].proof
    file, _, name = proof.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8") if file else ""
    if name:
        assert f"def {name}(" in text
    elif proof:
        assert pattern.partition(" *")[0].removesuffix(" *") in text
    if pattern.startswith("make "):
        target = pattern.split()[1]
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", [SMALLER, NOT_HERE], ids=["run", "not run"])
def test_the_tables_hold_nothing_that_no_page_shows(table: dict[str, Any]) -> None:
    used = {matching(line_of(shown), table) for shown in commands()}
    assert [pattern for pattern in table if pattern not in used] == []


# ---------------------------------------------------------------------------------------------- run
@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("sdxl", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run, with the files that pages take for granted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name, text in PROMPTS.items():
        Path(name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The repository without the package's own files, for commands that write into it."""
    place = tmp_path_factory.mktemp("copies") / "repository"
    names = ("benchmarks", "docs", "examples", "integrations", "tests")
    for name in names:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, place / name)
    (place / "src").symlink_to(ROOT / "src")
    python = place / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (place / ".venv" / ".tomadiff-installed").touch()
    yield place
    shutil.rmtree(place)


@pytest.fixture(autouse=True)
def _models_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", _load)


_real = models.load


@cache
def _load(*given: Any, **options: Any) -> Any:
    return _real(*given, **options)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=() if line in QUICK else (pytest.mark.slow,), id=line) for line in RUN]
)
def test_every_command_runs(
    line: str, tiny: Path, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = here(shlex.split(line), {"tiny": str(tiny), "folder": str(folder)})
    assert words is not None
    if words[0] == "tomadiff":
        in_this_process(words[1:], monkeypatch)
    elif words[0] == "export":
        name = words[1].partition("=")[0]
        assert any(name in path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    else:
        in_a_copy(words, request.getfixturevalue("copy"))


def in_this_process(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The console script's own entry; a page that is served is looked at once, and ends."""
    if arguments[0] == "web":
        monkeypatch.setattr(webbrowser, "open", lambda *_, **__: True)
        monkeypatch.setattr("gradio.Blocks.block_thread", look_and_close)
    if arguments[0] == "report":
        for name in (word for word in arguments[1:] if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")):
            painted_run(Path(name))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout.replace("measuring …", "")


def look_and_close(blocks: Any) -> None:
    with urllib.request.urlopen(blocks.local_url) as page:
        assert page.status == 200
    blocks.close()


def in_a_copy(words: list[str], copy: Path) -> None:
    program = [str(copy / ".venv/bin/python"), *words[1:]] if words[0] == "python" else words
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{copy}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
    told = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, told
