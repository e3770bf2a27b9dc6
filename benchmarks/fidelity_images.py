"""A few prompts as every method generates them; ``python -m benchmarks.fidelity_images emoji-sdxl``.

Writes ``docs/images/fidelity-<model>.png``: the unmerged image first, then merged ones with their PSNR against it.
ToMeSD and ToFu merge at every op and level here, as ToMA does, so that equal ratios are equally hard.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from rich.progress import track

from benchmarks.candidates import EVERYWHERE, RATIOS
from benchmarks.fidelity import TOGETHER, batches, pairs_of, trials_of
from benchmarks.fidelity_report import IMAGES
from tomadiff import ToDo, ToFu, ToMA, ToMeSD, embedded
from tomadiff.evaluation.metrics.distances import psnr
from tomadiff.evaluation.metrics.features import to_pixels
from tomadiff.evaluation.report.overlay import image_grid
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.tune.trials import Pair, Trials

UNMERGED = "unmerged"


def columns() -> dict[str, Variant | None]:
    """What is generated, by its heading."""
    methods = {
        **{f"ToMA .{100 * ratio:.0f}".rstrip("0"): ToMA(ratio) for ratio in RATIOS},
        "paper .5": ToMA.paper(0.5),
        "random .5": replace(ToMA.paper(0.5), selector="random"),
        "ToMeSD .5": ToMeSD(0.5, **EVERYWHERE),
        "ToFu .5": ToFu(0.5, **EVERYWHERE),
        "ToDo .75": ToDo(),
    }
    return {UNMERGED: None, **{head: Variant.of(head, method) for head, method in methods.items()}}


def generated(trials: Trials, pairs: Sequence[Pair], candidate: Variant | None, together: int) -> Iterator[Image.Image]:
    """One column."""
    for part in batches(pairs, together):
        yield from trials.unmerged(part) if candidate is None else trials.generate(part, candidate)


def grid(model: str, count: int, steps: int) -> Image.Image:
    """A row for each prompt."""
    trials, pairs, heads = trials_of(model, steps), pairs_of(count), columns()
    images = {
        head: list(generated(trials, pairs, candidate, TOGETHER[model]))
        for head, candidate in track(heads.items(), description=f"{model}, {steps}")
    }
    distances = {head: psnr(to_pixels(own), to_pixels(images[UNMERGED])) for head, own in images.items()}
    rows = []
    for place, (prompt, _) in enumerate(pairs):
        notes = ["" if head == UNMERGED else f"{distances[head][place]:.1f} dB" for head in heads]
        rows.append((prompt.text, [own[place] for own in images.values()], notes))
    return image_grid(rows, list(heads))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=embedded.pipelines())
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="docs/images/fidelity-<model>.png unless told")
    wanted = parser.parse_args(given)
    torch.set_num_threads(wanted.threads)
    image = grid(wanted.model, wanted.prompts, wanted.steps)
    image.save(wanted.out or IMAGES / f"fidelity-{wanted.model}.png", optimize=True)


if __name__ == "__main__":
    main()
