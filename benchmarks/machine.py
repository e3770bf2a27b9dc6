"""What is timed on: a process that is ready for it, and the environment on every result."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version

import torch

import tomadiff
from tomadiff.cost.machines import processor
from tomadiff.utils.memory import keep_memory


def ready_to_time(threads: int) -> None:
    """So many threads, and memory that stays in the process, for all that is compared alike."""
    torch.set_num_threads(threads)
    keep_memory()


def environment() -> dict[str, str]:
    """What a reader must know to compare a result with their own."""
    return {
        "threads": str(torch.get_num_threads()),
        "cpu": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
        "tomadiff": tomadiff.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
