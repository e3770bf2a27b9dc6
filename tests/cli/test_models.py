"""The list of models: the same for Python, the command line and the guide."""

import json

import diffusers
from typer.testing import CliRunner

import tomadiff
from benchmarks import models as page
from tomadiff.cli.main import app
from tomadiff.cli.models import markdown


def test_every_family_is_listed() -> None:
    found = json.loads(CliRunner().invoke(app, ["models", "--json"]).output)
    assert [one["family"] for one in found["supported"]] == [family.title for family in tomadiff.supported()]
    assert all(one["classes"] and one["pipelines"] and one["merges"] for one in found["supported"])
    assert "linear" in found["cannot_profit"]["SanaTransformer2DModel"]


def test_for_people() -> None:
    text = CliRunner().invoke(app, ["models"]).output
    assert "FluxSingleTransformerBlock as a whole" in text
    assert "SanaTransformer2DModel: its attention is linear" in text
    assert "text stays unmerged" in text
    assert "each of their tokens counts" in text, "why"


def test_the_guide_has_the_same_table() -> None:
    """If not: python -m benchmarks.models."""
    assert f"{page.BEGIN}\n\n{markdown()}\n\n{page.END}" in page.PAGE.read_text(encoding="utf-8")


def test_names_are_those_of_diffusers() -> None:
    """Of this version or a later one: what it has not, no newer one of its family has either."""
    names = {name for family in tomadiff.supported() for name in (*family.models, *family.pipelines)}
    if diffusers.__version__ >= "0.42":
        assert {name for name in names if not hasattr(diffusers, name)} == set()
