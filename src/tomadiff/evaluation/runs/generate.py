"""Generate the images of a run: prompts × seeds × methods, in batches, over processes, and again after a kill.

The order and the batches follow from the tasks alone, never from what is finished already: a batch that a kill
cut short is generated again whole, so a run that was killed holds the very images of one that was not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from PIL import Image

from tomadiff.cost.budget import Budget, RatioChoice
from tomadiff.errors import SettingError, UnsupportedModelError, require_count
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.record import Run, Sample
from tomadiff.evaluation.runs.timer import now
from tomadiff.evaluation.runs.environment import versions
from tomadiff.steps.forecast import Forecast, Pattern
from tomadiff.methods.base import Method
from tomadiff.methods.registry import named
from tomadiff.patch import Patch, apply
from tomadiff.steps.schedule import Schedule

BASELINE = "baseline"
"""The unmerged model, by the name it has in every table."""

UNGUARDED = (
    "Tokens merge wherever the method says, so that methods are compared alike (guard=False). tomadiff.apply leaves "
    "tokens unmerged where that is expected to be faster."
)
"""What every table of merged images has to say."""

Call = Mapping[str, Any]
"""What a pipeline is called with beside prompt and generator: ``{"num_inference_steps": 20, "height": 512, …}``."""


@dataclass(frozen=True)
class Variant:
    """The model with a method of the catalogue at a ratio, or :data:`BASELINE`.

    Where a budget chose (see :func:`within`), ``budget`` says which, ``start`` is the first merged step, and ``finest``
    the ratio of level 0. ``forecast`` is the tolerance of forecast steps; 0 computes all.
    """

    method: str = BASELINE
    ratio: float = 0.0
    start: int = 0
    budget: str = ""
    finest: float = 0.0
    forecast: float = 0.0

    @property
    def name(self) -> str:
        """What its images are called by."""
        method = f"{self.method}-{self.budget}" if self.budget else self.method
        if not self.forecast:
            return method
        return f"{method}+forecast-{self.forecast:g}" if self.merges else f"forecast-{self.forecast:g}"

    @property
    def label(self) -> str:
        """What it is called in lines that people read."""
        return f"{self.name} {self.ratio:.0%}" if self.merges else self.name

    @property
    def merges(self) -> bool:
        """Whether a method is applied at all."""
        return self.method != BASELINE

    def made(self) -> tuple[Method, Schedule] | None:
        """The method and its schedule; ``None`` for the baseline."""
        if not self.merges:
            return None
        method, schedule = named(self.method, self.ratio)
        return method, self._ratio_choice.on(replace(schedule, start=self.start)) if self.budget else schedule

    @property
    def _ratio_choice(self) -> RatioChoice:
        return RatioChoice(self.ratio, self.finest)


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
        method, ratio, prompt = self.variant.name, self.variant.ratio, self.prompt
        return Sample(method, ratio, prompt.text, self.seed, seconds, flops, negative=prompt.negative)


Batch = tuple[Task, ...]
"""Tasks of one variant that are generated together."""


# ---------------------------------------------------------------------------------------------- what to generate
def variants(methods: Sequence[str], ratios: Sequence[float], forecasts: Sequence[float] = (0.0,)) -> list[Variant]:
    """The baseline, then every method at every ratio with every forecast, by tolerance.

    A method with a ratio of its own (ToDo) comes once.
    """
    wanted = [Variant()]
    for method, ratio, forecast in product(methods, ratios, forecasts):
        merging = Variant() if method == BASELINE else Variant(method, named(method, ratio)[0].ratio)
        wanted.append(replace(merging, forecast=forecast))
    return list(dict.fromkeys(wanted))


def within(pipe: Any, method: str, budget: Budget, prompt: Prompt, call: Call, batch: int = 1) -> Variant:
    """``method`` with the ratio and first merged step that keep images like this one within ``budget``.

    They are chosen at the first call of the denoiser, and no further does this go.
    """
    if method == BASELINE:
        raise SettingError(f"The baseline merges nothing, so {budget} cannot be met; leave out --method baseline.")
    made = named(method)
    with apply(pipe, made[0], schedule=made[1], guard=False, flops=budget.flops, speedup=budget.speedup) as patch:
        stop = models.denoiser(pipe).register_forward_pre_hook(_stop)
        try:
            pipe(**arguments_of(pipe, [prompt] * batch, range(batch), call))
        except _Stopped:
            pass
        finally:
            stop.remove()
        choice = next(iter(patch.choices.values()))
    return Variant(method, choice.ratio, choice.start, str(budget), choice.ratio_choice.finest)


class _Stopped(Exception):  # noqa: N818 - it is no error
    """Far enough."""


def _stop(*_: Any) -> None:
    raise _Stopped


def tasks(
    prompts: Sequence[Prompt | str], seeds: Sequence[int], wanted: Sequence[Variant], batch: int = 1
) -> list[Batch]:
    """Every batch of a run, in order: of each few images the baseline first, then the variants.

    So a run that is looked at early holds whole comparisons, and a machine that slows down slows all of them.
    """
    require_count("batch", batch)
    if not prompts or not seeds:
        raise SettingError("There is nothing to generate: give at least one prompt and one seed.")
    distinct = {(prompt.text, prompt.negative): prompt for prompt in map(as_prompt, prompts)}
    pairs = list(product(distinct.values(), dict.fromkeys(seeds)))
    groups = [pairs[start : start + batch] for start in range(0, len(pairs), batch)]
    return [tuple(Task(variant, *pair) for pair in group) for group in groups for variant in wanted]


def as_prompt(prompt: Prompt | str) -> Prompt:
    """A text alone is a prompt too."""
    return Prompt(prompt) if isinstance(prompt, str) else prompt


# ---------------------------------------------------------------------------------------------- how to generate
def call_of(
    model: str,
    pipe: Any,
    *,
    steps: int | None = None,
    size: tuple[int, int] | None = None,
    guidance: float | None = None,
) -> dict[str, Any]:
    """What to call a pipeline with: the given settings, else the model's own, else the pipeline's defaults."""
    if steps is not None:
        require_count("steps", steps)
    given = {"num_inference_steps": steps, "guidance_scale": guidance}
    given |= {"width": size[0], "height": size[1]} if size else {}
    call = models.settings(model) | {name: value for name, value in given.items() if value is not None}
    known = inspect.signature(pipe.__call__).parameters
    unknown = [name for name in call if name not in known]
    if unknown:
        raise SettingError(f"{type(pipe).__name__} takes no {unknown[0]}; leave that setting out.")
    for name in ("num_inference_steps", "guidance_scale"):  # written down, since defaults change with versions
        if name in known:
            call.setdefault(name, known[name].default)
    return call


def generate_image(
    pipe: Any,
    prompt: Prompt | str,
    seed: int,
    call: Call | None = None,
    method: Method | None = None,
    schedule: Schedule | None = None,
) -> Image.Image:
    """One image: the same for the same seed, whatever was generated before."""
    made = None if method is None else (method, schedule or method.schedule)
    return generate_batch(pipe, [as_prompt(prompt)], [seed], call or {}, made)[0][0]


def generate_batch(
    pipe: Any,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    call: Call,
    made: tuple[Method, Schedule] | None = None,
) -> tuple[list[Image.Image], float]:
    """A batch of images and the seconds it took; merging comes off again whatever happens."""
    arguments = arguments_of(pipe, prompts, seeds, call)
    with patched(pipe, made):
        start = now(pipe.device)
        result = pipe(**arguments)
        seconds = now(pipe.device) - start
    return _images(pipe, result), seconds


def patched(
    pipe: Any, made: tuple[Method, Schedule] | None, forecast: Forecast | float | None = None
) -> AbstractContextManager[Patch | None]:
    """What puts a method and a forecast on a pipeline, and takes both off again."""
    if made is not None:
        return apply(pipe, made[0], schedule=made[1], guard=False, forecast=forecast or None)
    return apply(pipe, forecast=forecast) if forecast else nullcontext()


def arguments_of(pipe: Any, prompts: Sequence[Prompt], seeds: Sequence[int], call: Call) -> dict[str, Any]:
    """All that a pipeline is called with to generate a batch."""
    # On the CPU, so that a seed means the same noise on every device.
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    return {**call, **_texts(pipe, prompts), "output_type": "pil", "generator": generators}


def _texts(pipe: Any, prompts: Sequence[Prompt]) -> dict[str, list[str]]:
    texts = {"prompt": [prompt.text for prompt in prompts]}
    if any(prompt.negative for prompt in prompts):
        if "negative_prompt" not in inspect.signature(pipe.__call__).parameters:
            raise SettingError(f"{type(pipe).__name__} takes no negative prompts; leave them out.")
        texts["negative_prompt"] = [prompt.negative for prompt in prompts]
    return texts


def _images(pipe: Any, result: Any) -> list[Image.Image]:
    if not hasattr(result, "images"):
        raise UnsupportedModelError(f"{type(pipe).__name__} does not generate single images; evaluation needs those.")
    return list(result.images)


def require_supported(pipe: Any, wanted: Sequence[Variant]) -> None:
    """Raise before the first image, not hours later, if a method does not work on this pipeline."""
    for variant in wanted:
        made = variant.made()
        if made is not None:
            apply(pipe, made[0], schedule=made[1], guard=False).remove()


def supported_variants(target: Any, wanted: Sequence[Variant]) -> tuple[list[Variant], list[str]]:
    """Those that work on a pipeline or model, and one line for each method that does not."""
    refused: dict[str, str] = {}
    for variant in wanted:
        try:
            require_supported(target, [variant])
        except UnsupportedModelError as problem:
            refused[variant.method] = f"{variant.method}: {problem}"
    return [variant for variant in wanted if variant.method not in refused], list(refused.values())


def warm_up(pipe: Any, batch: Batch, call: Call) -> None:
    """The first image of a process is slow (caches, kernels): generate one that nobody times."""
    steps = min(2, call.get("num_inference_steps", 2))
    generate_batch(pipe, *_prompts_and_seeds(batch), {**call, "num_inference_steps": steps})


def _prompts_and_seeds(batch: Batch) -> tuple[list[Prompt], list[int]]:
    return [task.prompt for task in batch], [task.seed for task in batch]


# ---------------------------------------------------------------------------------------------- run tasks
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
        call: see :func:`call_of`.
        about: more to write into each image, such as :func:`tomadiff.evaluation.runs.models.describe`.
        advance: called with the number of images that were added.
        flops: FLOPs of one image, for its record; see :func:`tomadiff.evaluation.runs.dry_run.meter`.
        failures: where batches that fail are written down while the rest goes on; ``None`` raises at the first.
    """
    done = set(run.samples())
    left = [batch for batch in batches if unfinished(batch, done)]
    if left:
        warm_up(pipe, left[0], call)
    for batch in left:
        with nullcontext() if failures is None else failures.of(_name(batch)):
            variant = batch[0].variant
            made, counted = variant.made(), flops(replace(variant, forecast=0.0))
            with patched(pipe, made, variant.forecast) as patch:
                images, seconds = generate_batch(pipe, *_prompts_and_seeds(batch), call)
            steps = patch.pattern if patch is not None and variant.forecast else Pattern()
            counted *= steps.share
            settings = {**_settings(made), **_forecast(steps, variant.forecast), "versions": versions()}
            notes = {**about, "call": dict(call), "together": _together(batch), **settings}
            for task, image in zip(batch, images, strict=True):
                if task.key not in done:  # what was recorded before a kill stays as it was
                    run.add(task.sample(seconds / len(batch), counted), image, notes)
                    advance(1)


def _name(batch: Batch) -> str:
    """What a batch that failed is called."""
    return f"{batch[0].variant.label}, {batch[0].prompt.text!r}, seed {batch[0].seed}"


def unfinished(batch: Batch, done: Collection[str]) -> bool:
    """Whether an image of the batch is missing."""
    return any(task.key not in done for task in batch)


def _together(batch: Batch) -> list[list[Any]]:
    """Prompt, negative and seed of all images of a batch: neighbours can change the last bit of an image."""
    return [[task.prompt.text, task.prompt.negative, task.seed] for task in batch]


def _forecast(steps: Pattern, tolerance: float) -> dict[str, Any]:
    """Which steps were computed, and the estimated error of the others; ``Forecast(steps=…)`` replays it."""
    if not tolerance:
        return {}
    error = sum(steps.errors) / max(1, len(steps.errors))
    return {"forecast": {"tolerance": tolerance, "computed": list(steps.computed), "estimated error": error}}


def _settings(made: tuple[Method, Schedule] | None) -> dict[str, str]:
    return {} if made is None else {"settings": repr(made[0]), "schedule": repr(made[1])}


@contextmanager
def bar(total: int, done: int = 0, shown: bool = True, doing: str = "generating") -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; gives the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda count: progress.advance(task, count)
