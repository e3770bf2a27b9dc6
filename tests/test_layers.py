"""The rooms of the house import in one direction only; docs/design.md draws it, this test keeps it.

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

# A room may import rooms of earlier rows, and itself. "kernels" and "inject" keep to the narrower ONLY below.
ROWS = (
    ("errors", "memory"),
    ("settings", "reading", "writing"),
    ("grid",),
    ("kernels",),
    ("select",),
    ("plan",),
    ("unmerging", "matching", "allotment"),
    ("weights",),
    ("schedule", "clock", "history", "inject"),
    ("forecast", "driver", "around"),
    ("methods",),
    ("planner", "presets", "parallel", "budget"),
    ("slots",),
    ("arguments",),
    ("sites",),
    ("pooled", "reuse"),
    ("adapters",),
    ("cost",),
    ("guard", "report", "survey"),
    ("ledger",),
    ("patched",),
    ("forecast_model",),
    ("forecast_control",),
    ("patch",),
    ("embedded",),
    ("evaluate",),
    ("__init__",),
    ("doctor",),
    ("web",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
RANK = {room: rank for rank, row in enumerate(ROWS) for room in row}
ONLY = {"kernels": {"errors"}, "inject": {"errors"}}  # all that these rooms may import
# All that may import these rooms: kernels stand in for functions of the first three; the others trace what they cost.
GUESTS = {"kernels": {"select", "plan", "weights", "cost", "guard", "patched", "evaluate"}}
EXTRAS_ROOMS = {"web"}  # needs an extra: never imported at the top of a file
# `import tomadiff` must be quick and need no extra, so the front door opens onto these only from inside a function.
BEHIND_THE_DOOR = {"embedded", "evaluate", "doctor", "web", "commands", "cli"}

TOP = {"embedded", "evaluate", "doctor", "commands", "cli", "web"}
PARTIES = {  # third parties and the rooms that may import them; torch is for all
    "triton": {"kernels"},
    "diffusers": TOP | {"adapters"},
    "transformers": TOP | {"adapters"},
    "accelerate": TOP,
    "huggingface_hub": {"evaluate"},
    "safetensors": TOP,
    "numpy": TOP,
    "PIL": TOP,
    "matplotlib": {"evaluate"},
    "scipy": {"evaluate"},
    "skimage": {"evaluate"},
    "tomesd": {"evaluate"},
    "torchmetrics": {"evaluate"},
    "gradio": {"web"},
    "starlette": {"web"},
    "typer": {"cli", "commands"},
    "rich": {"cli", "commands", "evaluate"},
}
LATE = {  # only inside functions: not everyone has them, or they are slow to import
    "diffusers": {"adapters", "evaluate", "doctor", "commands", "cli", "web"},
    "transformers": {"adapters", "evaluate", "doctor", "commands", "cli", "web"},
    "huggingface_hub": {"evaluate"},
    "matplotlib": {"evaluate"},
    "scipy": {"evaluate"},
    "skimage": {"evaluate"},
    "tomesd": {"evaluate"},
    "torchmetrics": {"evaluate"},
    "gradio": {"web"},
    "starlette": {"web"},
}


@dataclass(frozen=True)
class Import:
    """One imported module: dotted name, line, and whether it waits for a call or for a type checker."""

    name: str
    line: int
    late: bool


def room_of(path: Path) -> str:
    """``src/tomadiff/methods/toma.py`` → ``methods``; ``src/tomadiff/plan.py`` → ``plan``."""
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
    for alias in node.names:  # `from tomadiff import plan` names a room, `from tomadiff import ToMA` the front door
        yield Import(f"{module}.{alias.name}" if module == "tomadiff" else module, node.lineno, late)


def _waits(node: ast.AST) -> bool:
    checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def complaints(room: str, source: str, package: str = "tomadiff") -> list[str]:
    """What is wrong with the imports of one file of ``room``; empty if nothing is."""
    if room not in RANK:
        return [f"'{room}' is a new room: give it its place in ROWS of tests/test_layers.py and in docs/design.md"]
    found = ((item, _complaint(room, item)) for item in imports(source, package))
    return [f"line {item.line}: {room} imports {item.name}: {wrong}" for item, wrong in found if wrong]


def _complaint(room: str, item: Import) -> str | None:
    first, *rest = item.name.split(".")
    if first == "tomadiff":
        return _wrong_room(room, rest[0] if rest and rest[0] in RANK else "__init__", item.late)
    if first in sys.stdlib_module_names or first == "torch":
        return None
    return _wrong_party(room, first, item.late)


def _wrong_room(room: str, other: str, late: bool) -> str | None:
    if other == room:
        return None
    if RANK[other] >= RANK[room]:
        return f"{other} does not come before {room}"
    if room in ONLY and other not in ONLY[room]:
        return f"{room} may import only {sorted(ONLY[room])}"
    if other in GUESTS and room not in GUESTS[other]:
        return f"only {sorted(GUESTS[other])} may import {other}"
    if not late and (other in EXTRAS_ROOMS or (room == "__init__" and other in BEHIND_THE_DOOR)):
        return f"import {other} inside the function that needs it"
    return None


def _wrong_party(room: str, party: str, late: bool) -> str | None:
    if party not in PARTIES:
        return f"{party} is a new third party: say in PARTIES of tests/test_layers.py which rooms may import it"
    if room not in PARTIES[party]:
        return f"{party} belongs in {sorted(PARTIES[party])}"
    if room in LATE.get(party, ()) and not late:
        return f"import {party} inside the function that needs it"
    return None


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_direction_of_the_rooms(path: Path) -> None:
    package = ".".join(["tomadiff", *path.relative_to(PACKAGE).parts[:-1]])
    assert complaints(room_of(path), path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize(
    ("room", "source", "expected"),
    [
        ("select", "from tomadiff.plan import MergePlan", "plan does not come before select"),
        ("select", "def f():\n    from tomadiff import plan", "plan does not come before select"),
        ("grid", "import tomadiff", "__init__ does not come before grid"),
        ("plan", "from tomadiff import ToMA", "__init__ does not come before plan"),
        ("errors", "from .grid import Grid", "grid does not come before errors"),
        ("inject", "from tomadiff.plan import MergePlan", "inject may import only"),
        ("methods", "from tomadiff.kernels import select", "may import kernels"),
        ("kernels", "from tomadiff.grid import Grid", "kernels may import only"),
        ("grid", "import numpy as np", "numpy belongs in"),
        ("sites", "def f():\n    import diffusers", "diffusers belongs in"),
        ("adapters", "from diffusers.models import attention", "import diffusers inside the function"),
        ("select", "import triton", "triton belongs in ['kernels']"),
        ("plan", "import matplotlib.pyplot as plt", "matplotlib belongs in ['evaluate']"),
        ("__init__", "from tomadiff.embedded import load", "import embedded inside the function"),
        ("cli", "from tomadiff import web", "import web inside the function"),
        ("grid", "import leftpad", "leftpad is a new third party"),
        ("attic", "import torch", "'attic' is a new room"),
    ],
)
def test_the_checker_catches(room: str, source: str, expected: str) -> None:
    (complaint,) = complaints(room, source)
    assert expected in complaint


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("grid", "import math\nimport torch.nn.functional as F\nfrom tomadiff.errors import ShapeError"),
        ("plan", "from tomadiff import kernels"),
        ("methods", "from .base import Method\nfrom tomadiff.schedule import Schedule"),
        ("adapters", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import diffusers"),
        ("adapters", "def f():\n    from diffusers import FluxPipeline"),
        ("cli", "import tomadiff\nimport typer\ndef web():\n    from tomadiff import web"),
        ("evaluate", "from PIL import Image\nfrom tomadiff.patch import apply"),
    ],
)
def test_the_checker_lets_pass(room: str, source: str) -> None:
    package = "tomadiff.methods" if room == "methods" else "tomadiff"
    assert complaints(room, source, package) == []


def test_relative_imports_are_resolved() -> None:
    (found,) = imports("from ..plan import MergePlan", "tomadiff.methods")
    assert found.name == "tomadiff.plan"
