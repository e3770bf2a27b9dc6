"""Data-parallel training on CPU: one single-threaded process per core beats one process with many threads."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def launch(task: Callable[[], None], workers: int) -> None:
    """Run `task` in `workers` processes that average their gradients; in this process if there is but one."""
    if workers == 1:
        torch.set_num_threads(os.cpu_count() or 1)
        return task()
    mp.spawn(join_and_run, args=(workers, task), nprocs=workers)


def join_and_run(rank: int, workers: int, task: Callable[[], None]) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    task()
    dist.destroy_process_group()


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def average_gradients(parameters: list[torch.Tensor]) -> None:
    """Replace every gradient by its mean over the workers, in one exchange."""
    if count() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, mean in zip(gradients, (flat / count()).split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
