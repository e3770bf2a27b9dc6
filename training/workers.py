"""Data-parallel training on CPU: one single-threaded process per core, no barriers inside operations."""

import os
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Keep freed memory in the process: by default glibc hands large blocks back to the kernel, and every step faults
# all its pages in again.  Read at process start, so it holds for the workers.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_TOP_PAD_": str(1 << 28)}


def launch(task: Callable[[], None], workers: int) -> None:
    """Run `task` in `workers` processes that average their gradients; in this process if there is but one."""
    if workers == 1:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
        return task()
    os.environ.update(KEEP_MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(join_and_run, args=(workers, f"file://{folder}/meeting", task), nprocs=workers)


def join_and_run(rank: int, workers: int, meeting: str, task: Callable[[], None]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=workers)
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


def share_out(matrices: list[torch.Tensor], work: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """`work` on every matrix (same shape out as in): each worker takes its share, all get every result."""
    if count() == 1:
        return [work(matrix) for matrix in matrices]
    # Largest first, dealt out in turn, so that shares are about equal.
    order = sorted(range(len(matrices)), key=lambda index: -matrices[index].numel())
    mine = set(order[rank() :: count()])
    results = [work(m) if index in mine else torch.zeros_like(m) for index, m in enumerate(matrices)]
    flat = torch.cat([result.flatten() for result in results])
    dist.all_reduce(flat)
    return [part.view_as(m) for part, m in zip(flat.split([m.numel() for m in matrices]), matrices, strict=True)]
