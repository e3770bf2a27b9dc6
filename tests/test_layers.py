"""Folders are layers: they import in one direction only. docs/design.md draws it, this test keeps it.

The imports of every file are read with ``ast``, so a file counts whether or not its extras are installed, and an
import inside a function counts as well.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tomadiff"

# A folder (or file) may import those of earlier rows, and itself.
ROWS = (
    ("errors",),
    ("utils",),
    ("kernels",),
    ("merging",),
    ("steps",),
    ("methods", "families"),
    ("presets",),
    ("engine",),
    ("cost",),
    ("patch",),
    ("embedded",),
    ("__init__",),
    ("evaluation",),
    ("web",),
    ("cli",),
    ("__main__",),
)
RANK = {folder: rank for rank, row in enumerate(ROWS) for folder in row}
ONLY = {"kernels": {"errors"}}  # all that these folders may import
# All that may import kernels: they stand in for functions of merging; the others trace what they cost.
GUESTS = {"kernels": {"merging", "cost", "evaluation"}}
EXTRA_FOLDERS = {"web"}  # needs an extra: never imported at the top of a file
# `import tomadiff` must be quick and need no extra, so it loads these only from inside a function.
LOADED_LATE = {"embedded", "evaluation", "web", "cli"}

# Inside of evaluation, by subfolder.
EVALUATION = (("runs",), ("metrics",), ("report",), ("timing", "inspect", "tune"), ("paper",))

TOP = {"embedded", "evaluation", "cli", "web"}
PARTIES = {  # third parties and the folders that may import them; torch is for all
    "triton": {"kernels"},
    "diffusers": TOP | {"engine"},
    "transformers": TOP,
    "accelerate": TOP,
    "huggingface_hub": {"evaluation"},
    "numpy": TOP,
    "PIL": TOP,
    "tomesd": {"evaluation"},
    "torchmetrics": {"evaluation"},
    "gradio": {"web"},
    "starlette": {"web"},
    "typer": {"cli"},
    "rich": {"cli", "evaluation"},
}
LATE = {  # only inside functions: not everyone has them, or they are slow to import
    "diffusers": {"engine", "evaluation", "cli", "web"},
    "transformers": {"evaluation", "cli", "web"},
    "huggingface_hub": {"evaluation"},
    "tomesd": {"evaluation"},
    "torchmetrics": {"evaluation"},
    "gradio": {"web"},
    "starlette": {"web"},
}


@dataclass(frozen=True)
class Import:
    """One imported module: dotted name, line, and whether it waits for a call or for a type checker."""

    name: str
    line: int
    late: bool


def folder_of(path: Path) -> str:
    """``src/tomadiff/methods/toma.py`` → ``methods``; ``src/tomadiff/patch.py`` → ``patch``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str, package: str) -> Iterator[Import]:
    """Every import of ``source``, a file whose relative imports start from ``package``."""
    yield from _walk(ast.parse(source), package.split("."), late=False)


def _walk(node: ast.AST, package: list[str], late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from _from(child, package, late)
        else:
            yield from _walk(child, package, late or _waits(child))


def _from(node: ast.ImportFrom, package: list[str], late: bool) -> Iterator[Import]:
    base = package[: len(package) + 1 - node.level] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    for alias in node.names:  # `from tomadiff import merging` names a folder, `from tomadiff import ToMA` the package
        yield Import(f"{module}.{alias.name}" if module == "tomadiff" else module, node.lineno, late)


def _waits(node: ast.AST) -> bool:
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def complaints(folder: str, source: str, package: str = "tomadiff") -> list[str]:
    """What is wrong with the imports of one file of ``folder``; empty if nothing is."""
    if folder not in RANK:
        return [f"'{folder}' is a new folder: give it its place in ROWS of tests/test_layers.py and in docs/design.md"]
    found = ((item, _complaint(folder, item)) for item in imports(source, package))
    return [f"line {item.line}: {folder} imports {item.name}: {wrong}" for item, wrong in found if wrong]


def _complaint(folder: str, item: Import) -> str | None:
    first, *rest = item.name.split(".")
    if first == "tomadiff":
        return _wrong_folder(folder, rest[0] if rest and rest[0] in RANK else "__init__", item.late)
    if first in sys.stdlib_module_names or first == "torch":
        return None
    return _wrong_party(folder, first, item.late)


def _wrong_folder(folder: str, other: str, late: bool) -> str | None:
    if other == folder:
        return None
    if RANK[other] >= RANK[folder]:
        return f"{other} does not come before {folder}"
    if folder in ONLY and other not in ONLY[folder]:
        return f"{folder} may import only {sorted(ONLY[folder])}"
    if other in GUESTS and folder not in GUESTS[other]:
        return f"only {sorted(GUESTS[other])} may import {other}"
    if not late and (other in EXTRA_FOLDERS or (folder == "__init__" and other in LOADED_LATE)):
        return f"import {other} inside the function that needs it"
    return None


def _wrong_party(folder: str, party: str, late: bool) -> str | None:
    if party not in PARTIES:
        return f"{party} is a new third party: say in PARTIES of tests/test_layers.py which folders may import it"
    if folder not in PARTIES[party]:
        return f"{party} belongs in {sorted(PARTIES[party])}"
    if folder in LATE.get(party, ()) and not late:
        return f"import {party} inside the function that needs it"
    return None


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_direction_of_the_rooms(path: Path) -> None:
    package = ".".join(["tomadiff", *path.relative_to(PACKAGE).parts[:-1]])
    assert complaints(folder_of(path), path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    ("folder", "source", "expected"),
    [
        ("merging", "from tomadiff.methods import ToMA", "methods does not come before merging"),
        ("merging", "def f():\n    from tomadiff import engine", "engine does not come before merging"),
        ("utils", "import tomadiff", "__init__ does not come before utils"),
        ("merging", "from tomadiff import ToMA", "__init__ does not come before merging"),
        ("errors", "from .merging import grid", "merging does not come before errors"),
        ("methods", "from tomadiff.kernels import select", "may import kernels"),
        ("kernels", "from tomadiff.utils.settings import Settings", "kernels may import only"),
        ("merging", "import numpy as np", "numpy belongs in"),
        ("families", "def f():\n    import diffusers", "diffusers belongs in"),
        ("engine", "from diffusers.models import attention", "import diffusers inside the function"),
        ("merging", "import triton", "triton belongs in ['kernels']"),
        ("merging", "import torchmetrics.image", "torchmetrics belongs in ['evaluation']"),
        ("__init__", "from tomadiff.evaluation import runs", "evaluation does not come before"),
        ("cli", "from tomadiff import web", "import web inside the function"),
        ("merging", "import leftpad", "leftpad is a new third party"),
        ("attic", "import torch", "'attic' is a new folder"),
    ],
)
def test_the_checker_catches(folder: str, source: str, expected: str) -> None:
    (complaint,) = complaints(folder, source)
    assert expected in complaint


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("merging", "import math\nimport torch.nn.functional as F\nfrom tomadiff.errors import ShapeError"),
        ("merging", "from tomadiff import kernels"),
        ("methods", "from .base import Method\nfrom tomadiff.steps.schedule import Schedule"),
        ("engine", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import diffusers"),
        ("engine", "def f():\n    from diffusers import FluxPipeline"),
        ("cli", "import tomadiff\nimport typer\ndef web():\n    from tomadiff import web"),
        ("evaluation", "from PIL import Image\nfrom tomadiff.patch import apply"),
    ],
)
def test_the_checker_lets_pass(folder: str, source: str) -> None:
    package = "tomadiff.methods" if folder == "methods" else "tomadiff"
    assert complaints(folder, source, package) == []


def test_relative_imports_are_resolved() -> None:
    (found,) = imports("from ..merging.plan import MergePlan", "tomadiff.methods")
    assert found.name == "tomadiff.merging.plan"


def test_subfolders_of_evaluation_follow_a_direction_too() -> None:
    rank = {name: place for place, row in enumerate(EVALUATION) for name in row}
    wrong = []
    for path in sorted((PACKAGE / "evaluation").glob("*/*.py")):
        own = path.parent.name
        for item in imports(path.read_text(encoding="utf-8"), f"tomadiff.evaluation.{own}"):
            parts = item.name.split(".")
            if parts[:2] == ["tomadiff", "evaluation"] and parts[2] != own and rank[parts[2]] >= rank[own]:
                wrong.append(f"{own}/{path.name}:{item.line} imports {item.name}")
    assert wrong == []
