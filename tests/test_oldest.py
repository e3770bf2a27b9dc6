"""Lower bounds of dependencies are versions that a job installs and tests, not guesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oldest import PROJECT, pin, pins

ROOT = PROJECT.parent


def test_every_dependency_has_a_lower_bound_that_can_be_installed() -> None:
    names = [one.partition("==")[0] for one in pins()]
    assert {"torch", "diffusers", "transformers", "numpy"} <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("requirement", ["torch", "torch==2.6", "torch>=2.6,<3", "torch<3"])
def test_a_requirement_without_one_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="lower bound"):
        pin(requirement)


def test_the_job_installs_these_and_no_others() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\noldest:")[2].partition("\n\n")[0]
    assert "tests.oldest" in recipe
    assert "==" not in recipe, "versions are pyproject.toml's to say"
    assert "make oldest" in Path(ROOT, ".github", "workflows", "ci.yml").read_text(encoding="utf-8")


def test_another_job_takes_the_newest_diffusers() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nnewest:")[2].partition("\n\n")[0]
    assert "--upgrade" in recipe
    assert "tests/families" in recipe
    assert "make newest" in Path(ROOT, ".github", "workflows", "ci.yml").read_text(encoding="utf-8")
