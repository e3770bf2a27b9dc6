"""What is timed on: a process that is ready for it, and the stamp on every result."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

import tomadiff
from tomadiff.memory import keep_memory


def ready_to_time(threads: int) -> None:
    """So many threads, and memory that stays in the process, for all that is compared alike."""
    torch.set_num_threads(threads)
    keep_memory()


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
