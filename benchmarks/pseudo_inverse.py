"""Does the pseudo-inverse ever fail? ``python -m benchmarks.pseudo_inverse --plans 2000 --threads 1``.

Makes plans with pseudo-inverse unmerge from the hidden states of the embedded pipelines, over whole runs: for every
block at every step, over the whole grid and in tiles, at three ratios. Each must be there, finite, and satisfy
``M · M⁺ · M = M``. With ``--svd`` the same matrices are given to torch's float32 SVD as well, which does fail.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count, islice, product
from typing import Any

import torch
from torch import Tensor

import tomadiff
from tomadiff import Schedule, ToMA, embedded
from tomadiff.evaluate.generate import arguments_of
from tomadiff.evaluate.prompts import load_prompts
from tomadiff.methods.base import Method

RATIOS = (0.5, 0.25, 0.75)
TOLERANCE = 1e-4


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--plans", type=int, default=2000)
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--svd", action="store_true")
    asked = reader.parse_args()
    torch.set_num_threads(asked.threads)
    failed = by_svd = 0
    worst = 0.0
    for made, plan in enumerate(islice(plans(), asked.plans), start=1):
        error = residual(plan)
        worst, failed = max(worst, error), failed + (not error < TOLERANCE)
        by_svd += asked.svd and svd_fails(plan.merge_matrix)
        if made % 100 == 0 or made == asked.plans:
            svd = f", float32 SVD failed {by_svd}" if asked.svd else ""
            print(
                f"{made} plans, {asked.threads} threads: {failed} failed, worst residual {worst:.1e}{svd}", flush=True
            )
        if made == asked.plans:
            break
    raise SystemExit(failed > 0)


def plans() -> Iterator[Any]:
    """Every plan that runs with pseudo-inverse unmerge make, without end."""
    pipes = {name: embedded.load(name) for name in ("emoji-flux", "emoji-sdxl")}
    prompts = load_prompts("emoji")
    for seed, ratio, (name, pipe) in product(count(), RATIOS, pipes.items()):
        for method in (ToMA.whole(ratio), ToMA.tile(ratio)):
            arguments = arguments_of(pipe, [prompts[seed % len(prompts)]], [seed], embedded.settings(name))
            yield from plans_of(pipe, method, {**arguments, "output_type": "latent"})


def plans_of(pipe: Any, method: Method, arguments: dict[str, Any]) -> list[Any]:
    """The plans of one image: of every block, at every step."""
    made: list[Any] = []
    with tomadiff.apply(pipe, method, schedule=Schedule(1, 1), guard=False) as patch:
        patch.set(unmerge="pseudo-inverse", scope="block")
        patch.watch(lambda _, planner, __: made.append(planner.last))
        pipe(**arguments)
    return made


def residual(plan: Any) -> float:
    """Largest entry of ``M · M⁺ · M − M``; NaN if anything is not finite."""
    merge, back = plan.merge_matrix.double(), plan.unmerge_matrix.double()
    return float((merge @ back @ merge - merge).abs().max())


def svd_fails(merge: Tensor) -> bool:
    try:
        torch.linalg.pinv(merge, rtol=1e-3)
    except torch.linalg.LinAlgError:
        return True
    return False


if __name__ == "__main__":
    main()
