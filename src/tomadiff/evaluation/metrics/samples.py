"""The samples of a run, put in order: by method and ratio, and next to those they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image

from tomadiff.evaluation.metrics.statistics import Interval, paired_difference
from tomadiff.evaluation.runs.images import read_image
from tomadiff.evaluation.runs.record import Run, RunError, Sample

ENOUGH_PROMPTS = 10  # to resample whole prompts; with fewer, single samples are resampled

Group = tuple[str, float]  # method and ratio
PairKey = str  # prompt and seed, in the form a sample's key has them
Pair = tuple[Sample, Sample]  # a sample, and the reference's with its prompt and seed


def grouped(run: Run) -> dict[Group, dict[PairKey, Sample]]:
    """Finished samples by method and ratio, then by prompt and seed, always in the same order."""
    found: dict[Group, dict[PairKey, Sample]] = {}
    for _, sample in sorted(run.samples().items()):
        pair_key = sample.key.removeprefix(f"{sample.method}-{sample.ratio:g}-")
        found.setdefault((sample.method, sample.ratio), {})[pair_key] = sample
    return found


def matched(group: Mapping[PairKey, Sample], anchors: Mapping[PairKey, Sample]) -> list[Pair]:
    """Samples next to the anchor with the same prompt and seed; those without one are left out."""
    return [(sample, anchors[pair_key]) for pair_key, sample in group.items() if pair_key in anchors]


def resampled(prompts: Sequence[str]) -> Sequence[str] | None:
    """The groups to resample: prompts, if there are enough of them."""
    return prompts if len(set(prompts)) >= ENOUGH_PROMPTS else None


def images_in(folder: Path) -> Iterator[Image.Image]:
    """The images of a folder in the order of their names, one at a time."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))
    if not found:
        raise RunError(f"{folder} holds no image (.png, .jpg, .jpeg, .webp) to compare with.")
    for path in found:
        yield read_image(path, RunError)


def difference(run: Run, name: str, one: Group, other: Group, confidence: float = 0.95, seed: int = 0) -> Interval:
    """How much better or worse one method's ``name`` is than another's on the same prompts and seeds."""
    groups = grouped(run)
    both = matched(groups.get(one, {}), groups.get(other, {}))
    both = [pair for pair in both if all(name in sample.metrics for sample in pair)]
    if not both:
        raise RunError(f"{run.folder}: no prompt and seed has {name} of both {one} and {other}; measure the run first.")
    values, others = (torch.tensor([pair[side].metrics[name] for pair in both]) for side in (0, 1))
    prompts = [sample.prompt for sample, _ in both]
    return paired_difference(values, others, resampled(prompts), confidence, seed=seed)
