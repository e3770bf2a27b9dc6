"""ComfyUI loads the nodes as any other custom node, and the example workflows fit them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from . import host

import execution  # isort: skip
import folder_paths
import nodes

from integrations.comfyui.example_workflows.render import svg

WORKFLOWS = sorted((host.FOLDER / "example_workflows").glob("*.json"))
EXTRAS = ("nodes_sd3.py", "nodes_flux.py", "nodes_preview_any.py")  # of ComfyUI, that the workflows use


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    paths = [host.FOLDER, *(host.COMFYUI / "comfy_extras" / name for name in EXTRAS)]
    for path in paths:
        assert asyncio.run(nodes.load_custom_node(str(path))), path


def test_comfyui_knows_the_nodes() -> None:
    for name in ("TomadiffAccelerate", "TomadiffSummary"):
        kind = nodes.NODE_CLASS_MAPPINGS[name]
        assert kind.GET_SCHEMA().node_id == name
        assert nodes.NODE_DISPLAY_NAME_MAPPINGS[name].endswith("(tomadiff)")


def as_prompt(workflow: dict[str, Any]) -> dict[str, Any]:
    """What ComfyUI's page sends: links by name, then values of widgets in the order of the schema."""
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        given = {port["name"]: sources[port["link"]] for port in node["inputs"]}
        kind = nodes.NODE_CLASS_MAPPINGS[node["type"]]
        values = list(node["widgets_values"])
        wanted = kind.INPUT_TYPES()
        for name, spec in {**wanted.get("required", {}), **wanted.get("optional", {})}.items():
            if name in given or not values:
                continue
            given[name] = values.pop(0)
            if len(spec) > 1 and spec[1].get("control_after_generate"):
                values.pop(0)  # what becomes of the seed
        assert not values, (node["type"], values)
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": given}
    return prompt


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_workflows_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = json.loads(path.read_text(encoding="utf-8"))
    files = [value for node in workflow["nodes"] for value in node["widgets_values"] if str(value).endswith("tensors")]
    monkeypatch.setattr(folder_paths, "get_filename_list", lambda _: files)
    valid, error, outputs, wrong = asyncio.run(execution.validate_prompt("id", as_prompt(workflow), None))
    assert valid, (error, wrong)
    assert len(outputs) == 3, "the image, the summary, and the text of it"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_wrong_workflow_is_told_from_a_right_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = as_prompt(json.loads(path.read_text(encoding="utf-8")))
    (own,) = (node for node in prompt.values() if node["class_type"] == "TomadiffAccelerate")
    own["inputs"]["ratio"] = 2.0
    valid, _, _, wrong = asyncio.run(execution.validate_prompt("id", prompt, None))
    assert not valid
    assert any("ratio" in str(problem) for problem in wrong.values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_drawings_are_those_of_the_workflows(path: Path) -> None:
    workflow = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".svg").read_text(encoding="utf-8") == svg(workflow)


def test_no_version_1_names_are_there() -> None:
    """Nodes of both schemas in one package are not both found."""
    for path in host.FOLDER.rglob("*.py"):
        if "tests" not in path.relative_to(host.FOLDER).parts:
            assert "NODE_CLASS_MAPPINGS" not in path.read_text(encoding="utf-8"), path
