"""``pyproject.toml`` lists what the package imports, inside functions too: no more and no less."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tomadiff"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = ("dev", "docs")  # for whoever works on the package, which imports nothing of them
EXTRAS = {name: needed for name, needed in PROJECT["optional-dependencies"].items() if name not in TOOLS}
DISTRIBUTIONS = {"PIL": "pillow", "huggingface_hub": "huggingface-hub"}  # names of imports that differ from pip's
# Not imported here, but by what is.
INDIRECT = {
    "torch-fidelity": "torchmetrics takes its Inception network from there",
    "torchvision": "torchmetrics takes the networks of LPIPS from there",
}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def imported(top_level: bool = False) -> Iterator[tuple[Path, str]]:
    """File and distribution of every import of a third party; if asked, of those outside of functions alone."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if top_level else ast.walk(tree):
            for module in _modules(node):
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "tomadiff":
                    yield path, DISTRIBUTIONS.get(top, top)


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_what_is_imported_is_listed_and_nothing_else() -> None:
    listed = names([*PROJECT["dependencies"], *(one for needed in EXTRAS.values() for one in needed)])
    assert {name for _, name in imported()} == listed - INDIRECT.keys()
    assert listed >= INDIRECT.keys()


def test_extras_are_imported_where_they_are_needed() -> None:
    core = names(PROJECT["dependencies"])
    assert all(core.isdisjoint(names(needed)) for needed in EXTRAS.values())
    wrong = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path, name in imported(top_level=True)
        if name not in core and "programs" not in path.parts  # Triton programs are imported where kernels run
    ]
    assert wrong == []


def test_developers_have_what_the_extras_bring() -> None:
    """But for the networks that torchmetrics takes from others, which follow every release of torch late."""
    wanted = names([one for needed in EXTRAS.values() for one in needed]) - INDIRECT.keys()
    dev = names(PROJECT["optional-dependencies"]["dev"])
    assert wanted - {"starlette"} <= dev  # Gradio brings it
