"""Several processes or machines on one run: ``accelerate launch -m tomadiff eval …``. Accelerate does the work.

Each process generates its part and appends to a results file of its own; machines need a folder that all of them see.
CPUs work too, with ``accelerate launch --multi_gpu --num_processes 2``: what that starts is not bound to GPUs, whereas
``--cpu`` starts a single process unless there is MPI.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tomadiff.evaluation.runs.dry_run import meter
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.generate import Call
from tomadiff.evaluation.runs.models import device_of
from tomadiff.evaluation.runs.record import Run
from tomadiff.evaluation.runs.tasks import Batch, bar, run_tasks, unfinished

logger = logging.getLogger("tomadiff")


class ProcessGroup:
    """The processes that were launched together, or the only one there is."""

    def __init__(self, device: str | None = None) -> None:
        from accelerate import PartialState

        cpu = device_of(device).type == "cpu"
        # One process may wait hours for the slowest; the usual limit of minutes would end the run.
        self.state = PartialState(cpu=cpu, timeout=timedelta(days=7))
        if self.size == 1 and os.environ.get("ACCELERATE_USE_CPU") == "True" and "MASTER_ADDR" in os.environ:
            logger.warning(
                "accelerate launch --cpu started one process only; for more on CPUs, say --multi_gpu in place of --cpu."
            )

    @property
    def leads(self) -> bool:
        """Whether this process measures and reports in the end."""
        return bool(self.state.is_main_process)

    @property
    def size(self) -> int:
        """How many processes there are."""
        return int(self.state.num_processes)

    @property
    def device(self) -> Any:
        """Which device is this process's own; ``None`` if it is alone and may choose."""
        return self.state.device if self.size > 1 else None

    def begin(self, folder: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> Run:
        """Open the run's folder, the first process before all others."""
        with self.state.main_process_first():
            return Run.begin(folder, config, environment, process=self.state.process_index)

    def share(self, batches: Sequence[Batch], run: Run) -> list[Batch]:
        """The part of this process in what is not finished."""
        done = set(run.samples())
        left = [batch for batch in batches if unfinished(batch, done)]
        self.wait()  # nobody generates before all have read what is finished: the list they split must be one
        with self.state.split_between_processes(left) as mine:
            return list(mine)

    def run_tasks(
        self, pipe: Any, run: Run, batches: Sequence[Batch], call: Call, about: Mapping[str, Any], shown: bool = True
    ) -> Failures:
        """Generate what is not finished, all processes their part, with FLOPs counted and a bar to look at.

        Returns what failed in this process; everything else is there.
        """
        mine, failures = self.share(batches, run), Failures()
        done, keys = run.samples(), [task.key for batch in mine for task in batch]
        first = batches[0][0]
        with bar(len(keys), sum(key in done for key in keys), shown and self.leads and bool(mine)) as advance:
            run_tasks(pipe, run, mine, call, about, advance, meter(pipe, first.prompt, first.seed, call), failures)
        self.wait()  # the first process measures what all of them generated
        return failures

    def wait(self) -> None:
        """Until every process is here."""
        self.state.wait_for_everyone()
