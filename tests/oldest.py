"""The oldest versions that pyproject.toml allows, as pins: ``python -m tests.oldest`` prints them for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = ("eval",)  # those of others are newer than what the oldest diffusers goes with


def pins(project: Path = PROJECT) -> list[str]:
    """``name==version`` for every dependency of the package and of :data:`EXTRAS`."""
    told = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    wanted = told["dependencies"] + [one for extra in EXTRAS for one in told["optional-dependencies"][extra]]
    return [pin(requirement) for requirement in wanted]


def pin(requirement: str) -> str:
    """``"torch>=2.6"`` → ``"torch==2.6"``; a requirement without a lower bound promises what nobody tests."""
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound alone; write it as name>=version.")
    return f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print("\n".join(pins()))
