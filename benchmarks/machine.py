"""What is timed on: a process that is ready for it, and the environment on every result."""

from __future__ import annotations

import torch

from tomadiff.evaluation.runs import environment as known
from tomadiff.utils.memory import keep_memory

COLUMNS = ("threads", "cpu", "system", "python", "torch", "diffusers", "tomadiff", "date")


def ready_to_time(threads: int) -> None:
    """So many threads, and memory that stays in the process, for all that is compared alike."""
    torch.set_num_threads(threads)
    keep_memory()


def environment() -> dict[str, str]:
    """What a reader must know to compare a result with their own, as columns of a CSV file."""
    found = known.environment()
    return {name: str(found[name]) for name in COLUMNS}
