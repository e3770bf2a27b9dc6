"""A real ComfyUI to run nodes in: the one inside the wheel that `make comfy` has unpacked, on the CPU.

Import this before anything of ComfyUI; where there is none, the importing file is skipped with a reason.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import transformers

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parents[1]  # of the nodes
COMFYUI = Path(os.environ.get("TOMADIFF_COMFYUI", ROOT / ".venv-comfy" / "comfyui"))


@contextmanager
def _torchvision() -> Iterator[None]:
    """ComfyUI imports it, and nothing here uses it; transformers must not see what stands in for it."""
    if find_spec("torchvision") is not None:
        yield
        return
    transformers.utils.is_torchvision_available()  # it remembers
    names = ("torchvision", "torchvision.transforms")
    for name in names:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules[names[0]].transforms = sys.modules[names[1]]  # type: ignore[attr-defined]
    yield
    for name in names:
        del sys.modules[name]


if not (COMFYUI / "comfy").is_dir():
    pytest.skip(f"there is no ComfyUI in {COMFYUI}; `make comfy` puts it there", allow_module_level=True)
sys.path.append(str(COMFYUI))  # behind this repository: it has a package "tests" too
with _torchvision():
    arguments = importlib.import_module("comfy.cli_args").args
    arguments.cpu = arguments.use_pytorch_cross_attention = True
    importlib.import_module("nodes")
