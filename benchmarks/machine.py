"""The stamp on every result: which machine, which versions, how many threads."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

import tomadiff


def stamp() -> dict[str, str]:
    """What a reader must know to compare a result with their own."""
    return {
        "threads": str(torch.get_num_threads()),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
        "tomadiff": tomadiff.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu() -> str:
    """The processor's name with its number of cores; Linux keeps it in a file, others in ``platform``."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} × {len(names)}" if names else platform.processor()
