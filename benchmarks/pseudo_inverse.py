"""Does the pseudo-inverse ever fail? ``python -m benchmarks.pseudo_inverse --plans 2000 --threads 1``.

Makes plans with pseudo-inverse unmerge from the hidden states of the embedded pipelines, over whole runs: for every
block at every step, over the whole grid and in tiles, at two ratios. Each must be there, finite, and satisfy
``M · M⁺ · M = M``. With ``--svd`` the same matrices are given to torch's float32 SVD as well, which does fail.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any

import torch

import tomadiff
from tomadiff import Schedule, ToMA, embedded
from tomadiff.evaluation.runs.generate import arguments_of
from tomadiff.evaluation.runs.prompts import load_prompts

RATIOS = (0.5, 0.75)
TOLERANCE = 1e-3  # singular values below this share of the largest are left out on purpose


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--plans", type=int, default=2000)
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--svd", action="store_true")
    asked = reader.parse_args()
    torch.set_num_threads(asked.threads)
    tally = Tally(asked.plans, asked.threads, asked.svd)
    pipes = {name: embedded.load(name) for name in ("emoji-flux", "emoji-sdxl")}
    prompts = load_prompts("emoji")
    for seed in count():
        for ratio, make, (name, pipe) in product(RATIOS, (ToMA.whole, ToMA.tile), pipes.items()):
            arguments = arguments_of(pipe, [prompts[seed % len(prompts)]], [seed], embedded.settings(name))
            generate(pipe, make(ratio), arguments, tally)
            if tally.made == asked.plans:
                raise SystemExit(tally.failed > 0)


def generate(pipe: Any, method: ToMA, arguments: dict[str, Any], tally: Tally) -> None:
    """One image, with plans for every block at every step, each of which is looked at."""
    inverted = replace(method, unmerge="pseudo-inverse", scope="block")
    with tomadiff.apply(pipe, inverted, schedule=Schedule(1, 1), guard=False) as patch:
        patch.watch(lambda _, group, __: tally.look(group.last))
        pipe(**{**arguments, "output_type": "latent"})


@dataclass
class Tally:
    """What came of the plans so far."""

    wanted: int
    threads: int
    svd: bool
    made: int = 0
    failed: int = 0
    failed_by_svd: int = 0
    worst: float = 0.0

    def look(self, plan: Any) -> None:
        """Take one more plan into account, unless there are enough."""
        if self.made == self.wanted:
            return
        error = residual(plan)
        self.made, self.failed = self.made + 1, self.failed + (not error < TOLERANCE)
        self.worst, self.failed_by_svd = max(self.worst, error), self.failed_by_svd + (self.svd and svd_fails(plan))
        if self.made % 100 == 0 or self.made == self.wanted:
            print(self, flush=True)

    def __str__(self) -> str:
        svd = f"; float32 SVD: {self.failed_by_svd} failed" if self.svd else ""
        return f"{self.made} plans, {self.threads} threads: {self.failed} failed, worst residual {self.worst:.1e}{svd}"


def residual(plan: Any) -> float:
    """Largest entry of ``M · M⁺ · M − M``; NaN if anything is not finite."""
    merge, back = plan.merge_matrix.double(), plan.unmerge_matrix.double()
    return float((merge @ back @ merge - merge).abs().max())


def svd_fails(plan: Any) -> bool:
    try:
        torch.linalg.pinv(plan.merge_matrix, rtol=1e-3)
    except torch.linalg.LinAlgError:
        return True
    return False


if __name__ == "__main__":
    main()
