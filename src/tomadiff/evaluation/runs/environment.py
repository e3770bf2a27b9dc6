"""What a reader must know to compare a run with their own: the machine and the versions."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tomadiff.cost.machines import processor

_PACKAGES = ("tomadiff", "torch", "diffusers", "transformers", "accelerate")


def versions() -> dict[str, str]:
    """Of every package that an image depends on."""
    return {package: _version(package) for package in _PACKAGES}


def environment(device: str = "cpu", dtype: str = "float32", processes: int = 1) -> dict[str, Any]:
    """Machine, versions and the day, for ``run.json``."""
    return {
        **versions(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "dtype": dtype,
        "processes": processes,
        "date": datetime.now(UTC).date().isoformat(),
    }


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a folder that was never installed
        return "unknown"
