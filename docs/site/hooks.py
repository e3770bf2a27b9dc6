"""What MkDocs does besides: a page for each public name, and links out of docs/ that lead to the repository."""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\[\]]*)\]\(((?:\.\./)+[^)\s#]*)(#[^)]*)?\)")


def public_names() -> list[str]:
    """``__all__`` of the package, read without importing it: building the site needs no torch."""
    for node in ast.parse((ROOT / "src/tomadiff/__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise PluginError("src/tomadiff/__init__.py has no __all__.")


def on_config(config: Any) -> Any:
    """Add the reference to the navigation."""
    pages = [{name: f"api/{name}.md"} for name in public_names()]
    config.nav.append({"Reference": [{"Overview": "api/index.md"}, *pages]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Make the pages of the reference."""
    names = public_names()
    rows = [f"| [`{name}`]({name}.md) | {_summary(name)} |" for name in names]
    head = "# Reference\n\nAll public names: `from tomadiff import …`.\n\n| name | what it is |\n|---|---|\n"
    files.append(File.generated(config, "api/index.md", content=head + "\n".join(rows) + "\n"))
    for name in names:
        page = f"---\ntitle: {name}\n---\n\n::: tomadiff.{name}\n"
        files.append(File.generated(config, f"api/{name}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links to files outside of docs/ lead to the repository; one to a file that is not there stops the build."""
    folder = (ROOT / "docs" / page.file.src_path).parent

    def outside(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_path}: {match[2]} is not there.")
        if not config.repo_url:
            return match[1]
        kind = "tree" if target.is_dir() else "blob"
        return f"[{match[1]}]({config.repo_url}/{kind}/main/{target.relative_to(ROOT)}{match[3] or ''})"

    return _LINK.sub(outside, markdown)


def _summary(name: str) -> str:
    """The first line of a name's docstring."""
    home = next(module for module, names in _homes().items() if name in names)
    path = ROOT / "src" / home.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _summary_in(ROOT / "src" / f"{(node.module or '').replace('.', '/')}.py", name)
    raise PluginError(f"{name} is not in {file}.")


def _summary_in(file: Path, name: str) -> str:
    found = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if getattr(node, "name", "") == name)
    return (ast.get_docstring(next(found)) or "").partition("\n")[0]  # type: ignore[arg-type]


def _homes() -> dict[str, tuple[str, ...]]:
    for node in ast.parse((ROOT / "src/tomadiff/__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            homes: dict[str, tuple[str, ...]] = ast.literal_eval(node.value)
            return homes
    raise PluginError("src/tomadiff/__init__.py has no _HOMES.")
