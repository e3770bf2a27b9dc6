"""The files that one tensor of hidden states passes are those that docs/design.md lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import tomadiff
from tests import tiny
from tomadiff import ToMA

PACKAGE = Path(tomadiff.__file__).parent
DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
MOST = 8


class Passed:
    """Notes the files whose functions are given a tensor of hidden states, for each merged op of a call."""

    def __init__(self) -> None:
        self.ops: list[set[str]] = []
        self._outer: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            if self._outer is None and frame.f_code.co_name == "merged_op":
                self._outer = frame
                self.ops.append(set())
            if self._outer is not None and any(_is_hidden_states(value) for value in frame.f_locals.values()):
                self.ops[-1].add(path.relative_to(PACKAGE).as_posix())
        elif event == "return" and frame is self._outer:
            self._outer = None


def _is_hidden_states(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() >= 3


def run(model: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    sample, text, pooled = (torch.randn(2, *size, generator=generator) for size in ((4, 32, 32), (8, 64), (32,)))
    with torch.no_grad():
        model(sample, 500, text, added_cond_kwargs={"text_embeds": pooled, "time_ids": torch.ones(2, 6)})


def test_a_tensor_passes_the_files_that_the_design_lists() -> None:
    model, passed = tiny.model("sdxl"), Passed()
    with tomadiff.apply(model, ToMA(0.5), guard=False):
        run(model)  # makes tables that are kept
        sys.setprofile(passed)
        try:
            run(model)
        finally:
            sys.setprofile(None)
    section = DESIGN.read_text(encoding="utf-8").partition("## The path of one tensor")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| \d \| `([a-z/_]+\.py)`", section, re.MULTILINE)
    assert set.union(*passed.ops) == set(listed)
    assert len(listed) <= MOST
    assert len(min(passed.ops, key=len)) <= MOST // 2
