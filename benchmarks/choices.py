"""The measurements behind choices of the core that docs/method.md explains; ``python -m benchmarks.choices``.

Does it pay to make tiny weights exact zeros? What does attending to the whole grid cost? What does the pseudo-inverse
win, and how large do its entries become? The tokens and the way of timing are those of :mod:`benchmarks.planning`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import environment
from benchmarks.planning import GRID, RATIO, Job, image_tokens, run_in_turn
from tomadiff import MergePlan, Tiles, ToMA, Whole
from tomadiff.evaluation.runs.rows import write
from tomadiff.merging import weights as weights_module
from tomadiff.merging.weights import weigh

RESULTS = Path(__file__).parent / "results" / "choices.csv"


@dataclass(frozen=True)
class Choice:
    """One variant of a choice: a plan, and the tokens it was made from."""

    question: str
    variant: str
    plan: MergePlan
    tokens: Tensor

    @property
    def error(self) -> float:
        """Relative Frobenius error of unmerge∘merge."""
        back = self.plan.unmerge(self.plan.merge(self.tokens))
        return float(torch.dist(back, self.tokens) / torch.linalg.vector_norm(self.tokens))


def choices() -> Iterator[Choice]:
    """Every variant of every choice."""
    image = image_tokens()
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    for kind, tokens in (("image", image), ("independent", noise)):
        yield Choice("tiny weights", f"{kind}, zeroed", tile_plan(tokens), tokens)
        with patch.object(weights_module, "_NEGLIGIBLE", 0.0):
            yield Choice("tiny weights", f"{kind}, kept", tile_plan(tokens), tokens)
    whole = ToMA.tile(RATIO, regions=Tiles(8), attention_regions=Whole())
    yield Choice("attention", "Tiles(8)", tile_plan(image), image)
    yield Choice("attention", "Whole()", whole.plan(image, GRID), image)
    for temperature in (1e-3, 1e-1):
        for unmerge in ("transpose", "pseudo-inverse"):
            plan = weigh(image, tile_plan(image).chosen, unmerge, temperature=temperature)
            assert isinstance(plan, MergePlan)
            yield Choice("unmerge", f"{unmerge}, τ = {temperature}", plan, image)


def tile_plan(tokens: Tensor) -> MergePlan:
    """The plan that all questions start from."""
    return ToMA.tile(RATIO, regions=Tiles(8)).plan(tokens, GRID)


def merge_job(choice: Choice) -> Job:
    """The time of one merge."""
    return Job(choice.variant, None, lambda: choice.plan.merge(choice.tokens))


def row(choice: Choice, job: Job) -> dict[str, str]:
    """What is worth knowing of one variant."""
    return {
        "question": choice.question,
        "variant": choice.variant,
        "merge_ms": f"{job.best:.2f}",
        "plan_mib": f"{choice.plan.nbytes / 2**20:.1f}",
        "error": f"{choice.error:.4f}",
        "largest_unmerge_entry": f"{choice.plan.unmerge_matrix.abs().max().item():.1f}",
    }


def table(rows: list[dict[str, str]]) -> Table:
    """The result for people."""
    shown = Table(*(heading.replace("_", " ") for heading in rows[0]))
    for values in rows:
        shown.add_row(*values.values())
    return shown


def main() -> None:
    """Measure, show, write."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        variants = list(choices())
        timed = [merge_job(choice) for choice in variants]
        run_in_turn(timed, runs=12)
        rows = [row(choice, job) for choice, job in zip(variants, timed, strict=True)]
    Console().print(table(rows))
    machine = environment()
    write(RESULTS, [values | machine for values in rows])


if __name__ == "__main__":
    main()
