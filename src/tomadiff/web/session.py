"""Where pictures are drawn: the models, one generation at a time on each, and what is kept of their work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm
from pathlib import Path
from threading import Event, Lock
from typing import Any

from PIL import Image

from tomadiff.errors import SettingError
from tomadiff.evaluation.metrics.features import AnyNetwork, NetworkUnavailable, at_hand, openers
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.generate import (
    Question,
    Variant,
    as_prompt,
    call_of,
    draw_together,
    patched,
    require_drawable,
    variants,
    warm_up,
)
from tomadiff.methods.registry import named
from tomadiff.patch import Patch
from tomadiff.web.cache import Kept
from tomadiff.web.maps import Looker, Maps
from tomadiff.web.metric_cards import apart
from tomadiff.web.progress import Progress, Tell, quietly
from tomadiff.web.request import Asked, Canvas, Picture
from tomadiff.web.snippet import origin, three_lines

KEPT = 32  # pictures, unmerged and merged each


@dataclass(frozen=True)
class Drawn:
    """A picture and the seconds it took; of a merged one, also what merged and what its patch says."""

    image: Image.Image
    seconds: float
    maps: Maps = field(default_factory=dict)
    summary: str = ""


@dataclass(frozen=True)
class Compared:
    """The same prompt and seed without and with merging.

    Attributes:
        asked: for what.
        before: the unmerged picture.
        after: the merged one.
        numbers: how far they are apart; see :func:`tomadiff.web.metric_cards.apart`.
        reused: whether the unmerged picture is from before.
    """

    asked: Asked
    before: Drawn
    after: Drawn
    numbers: dict[str, float]
    reused: bool


@dataclass
class Model:
    """A pipeline that is ready to draw."""

    name: str
    pipe: Any
    lock: Lock = field(default_factory=Lock)
    _warm: bool = False

    @cached_property
    def embedded(self) -> bool:
        """Whether it ships with the package."""
        return self.name in models.EMBEDDED and not Path(self.name).is_dir()

    @cached_property
    def canvas(self) -> Canvas:
        """The size it was made for, and which others it takes."""
        call, factor = call_of(self.name, self.pipe), getattr(self.pipe, "vae_scale_factor", 8)
        height, width = (factor * side for side in _sample_size(self.pipe))
        # Transformers see patches of two by two; every pipeline wants sides that eight divides.
        step = lcm(8, factor if getattr(self.pipe, "transformer", None) is None else 2 * factor)
        return Canvas(call.get("width") or width, call.get("height") or height, step)

    @property
    def steps(self) -> int:
        """Denoising steps unless told."""
        return int(call_of(self.name, self.pipe)["num_inference_steps"])

    def call(self, picture: Picture) -> dict[str, Any]:
        """What the pipeline is called with for a picture, beside prompt and generator."""
        return call_of(self.name, self.pipe, steps=picture.steps, size=(picture.width, picture.height))

    def draw(self, picture: Picture, progress: Progress, patch: Patch | None = None) -> Drawn:
        """One picture, on the model as it is: patched, or not."""
        if not self._warm:
            progress.begin("warming up")
            warm_up(self.pipe, (Question(Variant(), as_prompt(picture.prompt), picture.seed),), self.call(picture))
            self._warm = True
        progress.begin("merged" if patch else "unmerged")
        looker = Looker()
        if patch is not None:
            patch.watch(looker)
        call = {**self.call(picture), **progress.arguments(self.pipe)}
        images, seconds = draw_together(self.pipe, [as_prompt(picture.prompt)], [picture.seed], call)
        return Drawn(images[0], seconds - looker.seconds, looker.maps, patch.summary() if patch else "")

    def python(self, asked: Asked) -> str:
        """The lines that draw the merged picture."""
        made, picture = named(asked.variant.method, asked.variant.ratio), asked.picture
        source = origin(self.name, models.describe(self.name, self.pipe), self.embedded)
        return three_lines(source, *made, picture.prompt, picture.seed, self.call(picture), asked.variant.forecast)


def _sample_size(pipe: Any) -> tuple[int, int]:
    """Height and width of the latents a model was made for."""
    config = models.denoiser(pipe).config
    size = getattr(pipe, "default_sample_size", None) or getattr(config, "sample_size", None) or 64
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class Studio:
    """Draws what is asked, and keeps the latest pictures."""

    def __init__(self, offered: Iterable[Model], kept: int = KEPT) -> None:
        self.models = {model.name: model for model in offered}
        if not self.models:
            raise SettingError("There is no model to draw with: none is embedded here; give one with --model.")
        self._unmerged: Kept[Picture, Drawn] = Kept(kept)
        self._merged: Kept[Asked, Compared] = Kept(kept)
        self._networks: dict[str, AnyNetwork | None] = {}

    @property
    def first(self) -> Model:
        """The model that the page begins with."""
        return next(iter(self.models.values()))

    def compare(self, asked: Asked, tell: Tell = quietly, stop: Event | None = None) -> Compared:
        """Draw the merged picture, and the unmerged one if it is not at hand.

        Whatever happens on the way, the model comes out unpatched; :class:`~tomadiff.web.progress.Stopped` is raised
        when ``stop`` is set between two steps.
        """
        model, picture = self.models[asked.picture.model], asked.picture
        with model.lock:
            require_drawable(model.pipe, [asked.variant])  # before the unmerged picture takes its time
            before = self._unmerged.get(picture)
            progress = Progress(picture.steps * (1 if before else 2), tell, stop or Event())
            drawn = before or self._unmerged.put(picture, model.draw(picture, progress))
            made = named(asked.variant.method, asked.variant.ratio)
            # Unguarded: small models are quicker without merging, and people come here to see it.
            with patched(model.pipe, made, asked.variant.forecast) as patch:
                after = model.draw(picture, progress, patch)
        numbers = apart(drawn.image, after.image, self._at_hand(model))
        return self._merged.put(asked, Compared(asked, drawn, after, numbers, before is not None))

    def curve(
        self, asked: Asked, ratios: Iterable[float], tell: Tell = quietly, stop: Event | None = None
    ) -> Iterator[Compared]:
        """The same picture at several ratios, each as soon as it is there; those at hand are not drawn again.

        A method with a ratio of its own (ToDo) gives one picture.
        """
        for variant in variants([asked.variant.method], list(ratios), [asked.variant.forecast])[1:]:
            other = replace(asked, variant=variant)
            yield self.kept(other) or self.compare(other, tell, stop)

    def kept(self, asked: Asked) -> Compared | None:
        """What was drawn for this question, if it is still at hand."""
        return self._merged.get(asked)

    def _at_hand(self, model: Model) -> dict[str, AnyNetwork]:
        """Networks that can judge the model's pictures; emoji-judge knows nothing but emoji."""
        names = [name for name in at_hand() if model.embedded or name != "judge"]
        for name in names:
            if name not in self._networks:
                self._networks[name] = _opened(openers([name])[name])
        found = {name: self._networks[name] for name in names}
        return {name: network for name, network in found.items() if network is not None}


def _opened(opener: Callable[[], AnyNetwork]) -> AnyNetwork | None:
    try:
        with models.quiet():
            return opener()
    except NetworkUnavailable:
        return None
