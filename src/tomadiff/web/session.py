"""The models of the page, one generation at a time on each, and a cache of their images."""

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
from tomadiff.evaluation.metrics.features import AnyNetwork, NetworkUnavailable
from tomadiff.evaluation.metrics.networks import at_hand, openers
from tomadiff.evaluation.runs import models
from tomadiff.evaluation.runs.generate import as_prompt, call_of, generate_batch, warm_up
from tomadiff.evaluation.runs.variants import RECOMMENDED, Variant, require_supported, variants
from tomadiff.patch import Patch
from tomadiff.steps.run import Pattern
from tomadiff.web.cache import LruCache
from tomadiff.web.maps import Looker, Maps
from tomadiff.web.metric_cards import apart
from tomadiff.web.progress import Progress, Tell, quietly
from tomadiff.web.request import Canvas, ImageRequest, ImageSettings
from tomadiff.web.snippet import origin, three_lines

CACHED = 32  # images, in full and with a patch each
TOLERANCES = (0.05, 0.1, 0.4)  # of the forecasts beside what is recommended


@dataclass(frozen=True)
class Generated:
    """An image and its seconds; of a patched one, what merged, which steps were computed and why, and its summary."""

    image: Image.Image
    seconds: float
    maps: Maps = field(default_factory=dict)
    summary: str = ""
    pattern: Pattern = field(default_factory=Pattern)
    why: str = ""


@dataclass(frozen=True)
class Compared:
    """The same prompt and seed in full and with a patch.

    Attributes:
        request: what was requested.
        before: the full image.
        after: the other one.
        metrics: how far they are apart; see :func:`tomadiff.web.metric_cards.apart`.
        reused: whether the full image is from before.
    """

    request: ImageRequest
    before: Generated
    after: Generated
    metrics: dict[str, float]
    reused: bool


@dataclass
class Model:
    """A pipeline that is ready to generate."""

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

    @cached_property
    def words(self) -> int:
        """How many tokens of a prompt the model reads; 0 where nobody says."""
        lengths = [getattr(getattr(self.pipe, f"tokenizer{end}", None), "model_max_length", 0) for end in ("", "_2")]
        return next((length for length in lengths if 0 < length < 100_000), 0)

    @property
    def steps(self) -> int:
        """Denoising steps by default."""
        return int(call_of(self.name, self.pipe)["num_inference_steps"])

    def call(self, settings: ImageSettings) -> dict[str, Any]:
        """What the pipeline is called with for an image, beside prompt and generator."""
        return call_of(self.name, self.pipe, steps=settings.steps, size=(settings.width, settings.height))

    def generate(self, settings: ImageSettings, progress: Progress, patch: Patch | None = None) -> Generated:
        """One image, on the model as it is: patched, or not."""
        if not self._warm:
            progress.begin("warming up")
            warm_up(self.pipe, [as_prompt(settings.prompt)], [settings.seed], self.call(settings))
            self._warm = True
        progress.begin("with tomadiff" if patch else "in full")
        looker = Looker()
        if patch is not None:
            patch.watch(looker)
        call = {**self.call(settings), **progress.arguments(self.pipe)}
        images, seconds = generate_batch(self.pipe, [as_prompt(settings.prompt)], [settings.seed], call)
        found = Generated(images[0], seconds - looker.seconds, looker.maps)
        return found if patch is None else _told(found, patch)

    def python(self, request: ImageRequest) -> str:
        """The lines that generate the other image."""
        variant, settings = request.variant, request.settings
        source = origin(self.name, models.describe(self.name, self.pipe), self.embedded)
        given = settings.prompt, settings.seed, self.call(settings)
        return three_lines(source, variant.method, variant.schedule, *given, variant.tolerance)


def _told(found: Generated, patch: Patch) -> Generated:
    """The image with what its patch says."""
    found = replace(found, summary=patch.summary())
    forecast = next(iter(patch.report().forecasts), None)
    return found if forecast is None else replace(found, pattern=forecast.pattern, why=forecast.why)


def _sample_size(pipe: Any) -> tuple[int, int]:
    """Height and width of the latents a model was made for."""
    config = models.denoiser(pipe).config
    size = getattr(pipe, "default_sample_size", None) or getattr(config, "sample_size", None) or 64
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class Session:
    """Generates what is requested, and caches the latest images."""

    def __init__(self, offered: Iterable[Model], cached: int = CACHED) -> None:
        self.models = {model.name: model for model in offered}
        if not self.models:
            raise SettingError("There is no model to generate with: none is embedded here; give one with --model.")
        self._full: LruCache[ImageSettings, Generated] = LruCache(cached)
        self._merged: LruCache[ImageRequest, Compared] = LruCache(cached)
        self._networks: dict[str, AnyNetwork | None] = {}

    @property
    def first(self) -> Model:
        """The model that the page begins with."""
        return next(iter(self.models.values()))

    def compare(self, request: ImageRequest, tell: Tell = quietly, stop: Event | None = None) -> Compared:
        """Generate the image with a patch, and the full one if it is not cached.

        Whatever happens on the way, the model comes out unpatched; :class:`~tomadiff.web.progress.Stopped` is raised
        when ``stop`` is set between two steps.
        """
        model, settings = self.models[request.settings.model], request.settings
        with model.lock:
            require_supported(model.pipe, [request.variant])  # before the full image takes its time
            before = self._full.get(settings)
            progress = Progress(settings.steps * (1 if before else 2), tell, stop or Event())
            full = before or self._full.put(settings, model.generate(settings, progress))
            # Unguarded: small models are quicker without merging, and people come here to see it.
            with request.variant.on(model.pipe) as patch:
                after = model.generate(settings, progress, patch)
        metrics = apart(full.image, after.image, self._at_hand(model))
        return self._merged.put(request, Compared(request, full, after, metrics, before is not None))

    def curve(
        self, request: ImageRequest, ratios: Iterable[float], tell: Tell = quietly, stop: Event | None = None
    ) -> Iterator[Compared]:
        """The same image several times, each as soon as it is there; those in the cache are not generated again.

        A method comes at several ratios, or once if it has a ratio of its own (ToDo). What is recommended comes beside
        forecasts of other tolerances.
        """
        for variant in _on_curve(request.variant, list(ratios)):
            other = replace(request, variant=variant)
            yield self.cached(other) or self.compare(other, tell, stop)

    def cached(self, request: ImageRequest) -> Compared | None:
        """What was generated for this request, if it is still cached."""
        return self._merged.get(request)

    def _at_hand(self, model: Model) -> dict[str, AnyNetwork]:
        """Networks that can judge the model's images; emoji-judge knows nothing but emoji."""
        names = [name for name in at_hand() if model.embedded or name != "judge"]
        for name in names:
            if name not in self._networks:
                self._networks[name] = _opened(openers([name])[name])
        found = {name: self._networks[name] for name in names}
        return {name: network for name, network in found.items() if network is not None}


def _on_curve(variant: Variant, ratios: list[float]) -> list[Variant]:
    if variant.entry == RECOMMENDED:
        return [variant, *(Variant().forecasting(tolerance) for tolerance in TOLERANCES)]
    return variants([variant.entry], ratios, [variant.tolerance])[1:]


def _opened(opener: Callable[[], AnyNetwork]) -> AnyNetwork | None:
    try:
        with models.quiet():
            return opener()
    except NetworkUnavailable:
        return None
