"""Generate the images of a run: prompts × seeds × variants, in batches, over processes, and again after a kill.

The order and the batches follow from the tasks alone, never from what is finished already: a batch that a kill cut
short is generated again whole, so a run that was killed holds the very images of one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tomadiff.errors import SettingError, require_count
from tomadiff.evaluation.runs.environment import versions
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.generate import Call, as_prompt, generate_batch, warm_up
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.record import Run, Sample
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.steps.run import Pattern


@dataclass(frozen=True)
class Task:
    """One image to generate."""

    variant: Variant
    prompt: Prompt
    seed: int

    @property
    def key(self) -> str:
        """That of its sample."""
        return self.sample(0.0).key

    def sample(self, seconds: float, flops: float = 0.0) -> Sample:
        """The finished sample."""
        return Sample(*self.variant.group, self.prompt.text, self.seed, seconds, flops, negative=self.prompt.negative)


Batch = tuple[Task, ...]
"""Tasks of one variant that are generated together."""


def tasks(
    prompts: Sequence[Prompt | str], seeds: Sequence[int], wanted: Sequence[Variant], batch: int = 1
) -> list[Batch]:
    """Every batch of a run, in order: of each few images the full ones first, then the variants.

    So a run that is looked at early holds whole comparisons, and a machine that slows down slows all of them.
    """
    require_count("batch", batch)
    if not prompts or not seeds:
        raise SettingError("There is nothing to generate: give at least one prompt and one seed.")
    distinct = {(prompt.text, prompt.negative): prompt for prompt in map(as_prompt, prompts)}
    pairs = list(product(distinct.values(), dict.fromkeys(seeds)))
    groups = [pairs[start : start + batch] for start in range(0, len(pairs), batch)]
    return [tuple(Task(variant, *pair) for pair in group) for group in groups for variant in wanted]


def run_tasks(
    pipe: Any,
    run: Run,
    batches: Sequence[Batch],
    call: Call,
    about: Mapping[str, Any],
    advance: Callable[[int], None] = lambda _: None,
    flops: Callable[[Variant], float] = lambda _: 0.0,
    failures: Failures | None = None,
) -> None:
    """Generate what is not finished yet and record each image as soon as it is there.

    Args:
        pipe: see :func:`tomadiff.evaluation.runs.models.load`.
        run: where images go.
        batches: see :func:`tasks`.
        call: see :func:`tomadiff.evaluation.runs.generate.call_of`.
        about: more to write into each image, such as :func:`tomadiff.evaluation.runs.models.describe`.
        advance: called with the number of images that were added.
        flops: FLOPs of one image, for its record; see :func:`tomadiff.evaluation.runs.dry_run.meter`.
        failures: where batches that fail are written down while the rest goes on; ``None`` raises at the first.
    """
    done = set(run.samples())
    left = [batch for batch in batches if unfinished(batch, done)]
    if left:
        warm_up(pipe, *_prompts_and_seeds(left[0]), call)
    for batch in left:
        with nullcontext() if failures is None else failures.of(_name(batch)):
            for sample, image, notes in _generated(pipe, batch, call, flops):
                if sample.key not in done:  # what was recorded before a kill stays as it was
                    run.add(sample, image, {**about, **notes})
                    advance(1)


def _generated(
    pipe: Any, batch: Batch, call: Call, flops: Callable[[Variant], float]
) -> Iterator[tuple[Sample, Any, dict[str, Any]]]:
    """Samples of a batch with their images, and what to write into these."""
    variant = batch[0].variant
    counted = flops(replace(variant, forecast=None))
    with variant.on(pipe) as patch:
        images, seconds = generate_batch(pipe, *_prompts_and_seeds(batch), call)
    steps = patch.pattern if patch is not None and variant.forecast else Pattern()
    notes = {"call": dict(call), "together": _together(batch), **_settings(variant, steps), "versions": versions()}
    for task, image in zip(batch, images, strict=True):
        yield task.sample(seconds / len(batch), counted * steps.share), image, notes


def _name(batch: Batch) -> str:
    """What a batch that failed is called."""
    return f"{batch[0].variant.label}, {batch[0].prompt.text!r}, seed {batch[0].seed}"


def unfinished(batch: Batch, done: Collection[str]) -> bool:
    """Whether an image of the batch is missing."""
    return any(task.key not in done for task in batch)


def _prompts_and_seeds(batch: Batch) -> tuple[list[Prompt], list[int]]:
    return [task.prompt for task in batch], [task.seed for task in batch]


def _together(batch: Batch) -> list[list[Any]]:
    """Prompt, negative and seed of all images of a batch: neighbours can change the last bit of an image."""
    return [[task.prompt.text, task.prompt.negative, task.seed] for task in batch]


def _settings(variant: Variant, steps: Pattern) -> dict[str, Any]:
    """In full; of a forecast, which steps were computed and the estimated error of the others, to replay it."""
    found: dict[str, Any] = {}
    if variant.method is not None:
        found = {"settings": repr(variant.method), "schedule": repr(variant.schedule)}
    if variant.forecast is not None:
        error = sum(steps.errors) / max(1, len(steps.errors))
        computed = {"computed": list(steps.computed), "estimated error": error}
        found["forecast"] = {"settings": repr(variant.forecast), "tolerance": variant.tolerance, **computed}
    return found


@contextmanager
def bar(total: int, done: int = 0, shown: bool = True, doing: str = "generating") -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; gives the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda count: progress.advance(task, count)
