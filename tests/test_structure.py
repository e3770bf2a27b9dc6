"""What a newcomer meets: few entries, short files, short functions, a quick import, and private names in one place."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tomadiff"
FILES = sorted(PACKAGE.rglob("*.py"))
HOOKS = ("engine/hooks.py", "engine/outer_hooks.py")  # one file of both would be too long
# Private names of torch that stand for something public elsewhere, or that cost has no other way to see.
KNOWN = {
    "_pytree": "torch.utils._pytree, which torch itself documents to users",
    "_python_dispatch": "TorchDispatchMode lives there",
    "_subclasses": "FakeTensor lives there",
    "_C": "of torch.Tag and the like",
    "_dynamo": "torch._dynamo.config and graph_break",
    "_schema": "of an operator, which TorchDispatchMode hands over",
    "_overloadpacket": "of an operator, the key of flop_registry",
    "_cdata": "tells storages apart",
    "_getframe": "sys._getframe, which Python documents",
    "_current_frames": "sys._current_frames, which Python documents",
}
# Names that nothing in the package, benchmarks or integrations refers to, and why they stay.
CALLED_BY_OTHERS = {
    "__getattr__": "Python, for names of the package",
    "__dir__": "Python, for names of the package",
    "_loop": "a weak reference that is kept for its callback",
    "_root": "a hook that is stopped by the name of its attribute",
    "metavar": "Typer, which shows options",
    "preprocess": "Gradio, for what a field holds",
    "note_of": "users, to read how an image was generated",
    "unregister": "users, who register a family of their own",
}
REGISTERS = ["@app.command*", "@register_flop_formula*", "@*.register_fake"]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Every function but Triton programs, with its number of lines."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_triton(node):
                yield path, node, (node.end_lineno or node.lineno) - node.lineno + 1


def _is_triton(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list)


def test_the_package_shows_few_entries() -> None:
    assert len([entry for entry in PACKAGE.iterdir() if entry.name != "__pycache__"]) <= 18


def test_files_are_short() -> None:
    long = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: lines for name, lines in long.items() if lines > 320} == {}


def test_functions_are_short() -> None:
    found = list(functions())
    assert median(lines for _, _, lines in found) <= 8
    assert [f"{path.name}: {node.name}, {lines} lines" for path, node, lines in found if lines > 45] == []


def test_no_ten_lines_stand_twice() -> None:
    places: dict[tuple[str, ...], list[str]] = {}
    for path in FILES:
        text = path.read_text(encoding="utf-8").splitlines()
        lines = [(number, line.strip()) for number, line in enumerate(text, 1) if line.strip()]
        for start in range(len(lines) - 9):
            ten = tuple(line for _, line in lines[start : start + 10])
            places.setdefault(ten, []).append(f"{path.relative_to(PACKAGE)}:{lines[start][0]}")
    assert [found for found in places.values() if len(found) > 1] == []


def test_no_code_is_dead() -> None:
    """By names, so what only Python, Typer or torch calls is listed; others here may use what the package does not."""
    vulture = pytest.importorskip("vulture")
    found = vulture.Vulture(ignore_names=list(CALLED_BY_OTHERS), ignore_decorators=REGISTERS)
    found.scavenge([PACKAGE, PACKAGE.parents[1] / "benchmarks", PACKAGE.parents[1] / "integrations"])
    unused = [one for one in found.get_unused_code(min_confidence=60) if PACKAGE in Path(one.filename).parents]
    assert [f"{one.filename}:{one.first_lineno} {one.name}" for one in unused] == []


def test_importing_loads_neither_diffusers_nor_costs() -> None:
    code = (
        "import sys, tomadiff\n"
        "tomadiff.ToMA\n"
        "own = [m for name, m in sys.modules.items() if name.startswith('tomadiff') and getattr(m, '__file__', None)]\n"
        "print(sum(len(open(m.__file__, encoding='utf-8').readlines()) for m in own))\n"
        "print('diffusers' in sys.modules, 'tomadiff.cost' in sys.modules)\n"
        "tomadiff.apply\n"
        "print('diffusers' in sys.modules, 'tomadiff.cost' in sys.modules)\n"
    )
    lines, *loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert int(lines) <= 4500
    assert loaded == ["False False", "False False"]


def test_private_names_of_others_are_in_one_place() -> None:
    """A name with an underscore that tomadiff does not define belongs to another library."""
    own = {name for path in FILES for name in _defined(tree(path))}
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.attr}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own | KNOWN.keys()
        and not str(path.relative_to(PACKAGE)).startswith(HOOKS)
    ]  # fmt: skip
    assert wrong == []


def _defined(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
