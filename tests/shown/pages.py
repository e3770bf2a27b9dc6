"""The pages of the repository: their blocks of code, and every command that they show."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tomadiff.cli.main import app

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
COMMANDS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "integrations/comfyui/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
)
"""Where commands are looked for, besides the notebook and the help texts."""

_BLOCK = re.compile(
    r"^(?P<mark><!-- needs (?:a GPU|the hub) -->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE
)
_PROGRAMS = ("tomadiff", "python", "make", "pip", "accelerate", "ssh", "git", "pytest", "docker", ".ci/run")
_SET = re.compile(r"[A-Z_]+=\S+")


@dataclass(frozen=True)
class Block:
    """A block of code, and the page and line that it begins at."""

    page: str
    line: int
    kind: str
    code: str
    marked: bool


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it, without comments; and the paragraph, row or line that it stands in."""

    page: str
    command: str
    around: str

    @property
    def words(self) -> list[str]:
        """As a shell reads them; another environment's python is the one that there is."""
        return [word.removeprefix(".venv/bin/") for word in shlex.split(self.command)]


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    return [
        Block(name, text.count("\n", 0, one.start("code")) + 1, one["kind"], one["code"], one["mark"] is not None)
        for one in _BLOCK.finditer(text)
    ]  # fmt: skip


def without_blocks(path: Path) -> str:
    """The rest of a page."""
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def commands() -> list[Shown]:
    """Every command of the pages, of the notebook and of the help texts, each once per page."""
    found = [*_notebook(), *_help()]
    for path in COMMANDS:
        found += _of_script(path) if path.suffix == ".py" else [*_of_blocks(path), *_inline(path)]
    return list({(one.page, one.command): one for one in reversed(found)}.values())[::-1]


def _of_blocks(path: Path) -> Iterator[Shown]:
    for block in blocks(path):
        if block.kind in ("sh", "bash", "console"):
            yield from _lines(block.page, block.code.replace("\\\n", " "))


def _lines(page: str, code: str) -> Iterator[Shown]:
    """A line may chain commands; what it pipes or writes elsewhere is not the command's."""
    for line in code.splitlines():
        for part in re.split(r" && | \| ", line.partition(" #")[0].partition(" > ")[0])[: 1 if " | " in line else None]:
            if part.strip() and not part.startswith("#"):
                yield Shown(page, part.strip(), line)


def _inline(path: Path) -> Iterator[Shown]:
    """Code within sentences and tables that begins as a command does."""
    name = str(path.relative_to(ROOT))
    for paragraph in re.split(r"\n\s*\n", without_blocks(path)):
        for piece in paragraph.split("\n") if paragraph.lstrip().startswith("|") else [paragraph]:
            for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", piece):
                command = " ".join(code.split())
                if is_command(command):
                    yield Shown(name, command, piece)


def is_command(text: str) -> bool:
    """Whether it begins with a program, after variables that are set; a program's name alone is only a name."""
    words = text.split()
    set_here = next((place for place, word in enumerate(words) if not _SET.fullmatch(word)), len(words))
    rest = words[set_here:]
    return bool(rest) and rest[0].removeprefix(".venv/bin/") in _PROGRAMS and (len(rest) > 1 or "/" in rest[0])


def _of_script(path: Path) -> Iterator[Shown]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if is_command(line):
            yield from _lines(str(path.relative_to(ROOT)), line)


def _notebook() -> Iterator[Shown]:
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        for line in text.splitlines() if cell["cell_type"] == "code" else ():
            if line.startswith(("!", "%")):
                yield from (Shown("notebook", one.command, text) for one in _lines("", line[1:]))


def _help() -> Iterator[Shown]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        for line in (command.help or "").splitlines():
            if is_command(line.strip()):
                yield from _lines(f"tomadiff {name} --help", line.strip())
