"""What pages show runs: every block of Python, with tiny pipelines in the place of hub ids. Commands: tests/shown.

A block that cannot run here stands below ``<!-- needs a GPU -->`` or ``<!-- needs the hub -->``.
"""

import re
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from tests import tiny
from tests.shown.pages import ROOT, Block, blocks, without_blocks
from tomadiff import Schedule, ToMA
from tomadiff.presets import Preset

PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guide").glob("*.md")]
SLOW = ("README.md", "docs/guide/speed.md")  # generates with emoji-sdxl; predicts for full-size architectures


def pages() -> list[Any]:
    found = []
    for path in sorted(PAGES):
        own = [one for one in blocks(path) if one.kind == "python"]
        if own:
            marks = (pytest.mark.slow,) if own[0].page in SLOW else ()
            found.append(pytest.param(own, id=own[0].page, marks=marks))
    return found


# ---------------------------------------------------------------------------------------------- pipelines
def frugal(family: str) -> Any:
    """A tiny pipeline that takes few steps whatever it is asked for, and stays on the CPU."""
    small = tiny.build(family)
    kind = type(small.pipe)

    def call(self: Any, *args: Any, num_inference_steps: int = 4, **settings: Any) -> Any:
        return kind.__call__(
            self, *args, num_inference_steps=min(num_inference_steps, 4), **(small.settings | settings)
        )

    stay = {"to": lambda self, *_, **__: self, "enable_model_cpu_offload": lambda *_, **__: None}
    small.pipe.__class__ = type(kind.__name__, (kind,), {"__call__": call, **stay})
    small.pipe.set_progress_bar_config(disable=True)
    return small.pipe


def family_for(text: str) -> str:
    """Which tiny pipeline stands in for a model, by its name or by a line that speaks of a transformer."""
    return "flux" if re.search("flux|transformer", text, re.IGNORECASE) else "sdxl"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hub ids are tiny pipelines, and files are written to a folder of the test's own."""

    def from_pretrained(cls: Any, name: str, **_: Any) -> Any:
        return frugal(family_for(f"{cls.__name__} {name}"))

    real = diffusers.DiffusionPipeline.from_pretrained.__func__  # type: ignore[attr-defined]

    def either(cls: Any, name: Any, **options: Any) -> Any:
        here = Path(name).is_dir()
        return real(cls, name, **options) if here else from_pretrained(cls, name, **options)

    monkeypatch.setattr(diffusers.DiffusionPipeline, "from_pretrained", classmethod(either))
    monkeypatch.chdir(tmp_path)
    Preset(ToMA(0.3), ToMA(0.3).schedule).save("mine.json")


def names() -> dict[str, Any]:
    """What pages take for granted."""
    unet = tiny.sdxl_unet()
    text = torch.randn(1, 5, 2 * tiny.WIDTH)
    added = {"text_embeds": torch.randn(1, tiny.WIDTH), "time_ids": torch.zeros(1, 6)}
    unet_inputs = {"sample": torch.randn(1, 4, 16, 16), "timestep": 500, "encoder_hidden_states": text}

    class Told:
        """A UNet that is told its size and crop, as a loop of one's own would."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return unet(*args, **kwargs, added_cond_kwargs=added)

    return {
        "torch": torch, "Schedule": Schedule, "layer": torch.nn.Linear(640, 640), "x": unet_inputs["sample"],
        "text": text, "timesteps": range(999, 0, -250), "inputs": unet_inputs, "unet": Told(),
    }  # fmt: skip


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("own", pages())
def test_every_block_of_python_runs(own: list[Block]) -> None:
    space, pipes = names(), {}
    for block in own:
        if block.marked:
            continue
        family = family_for(block.code)
        pipes.setdefault(family, frugal(family))
        space.setdefault("pipe", pipes[family])
        if "pipe = " not in block.code:
            space["pipe"] = pipes[family]
        lines = "\n" * (block.line - 1) + block.code  # so that a traceback names the line of the page
        with torch.no_grad():
            exec(compile(lines, block.page, "exec"), space)


# ---------------------------------------------------------------------------------------------- the site
def test_every_page_is_in_the_navigation() -> None:
    """Or ``make docs``, which is strict, fails."""
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in site] == []


def test_every_link_leads_somewhere() -> None:
    """To a file that is there, and to a heading that it has."""
    for path in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(path)):
            place, _, heading = target.partition("#")
            if not target.startswith("http"):
                there = path if not place else (path.parent / place).resolve()
                assert there.exists(), f"{path.name}: {target}"
                assert not heading or heading in anchors(there), f"{path.name}: {target}"


def anchors(path: Path) -> set[str]:
    """Headings as GitHub and MkDocs name them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", head.lower()).strip().replace(" ", "-") for head in heads}
