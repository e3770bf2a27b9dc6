"""Try settings on a pipeline: the same images with and without them, how far apart they are, and at which cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from tomadiff.cost import flop_counter
from tomadiff.evaluation.metrics.distances import cosine_distance, pixel_metrics
from tomadiff.evaluation.metrics.features import Network, image_features, to_pixels
from tomadiff.evaluation.runs.generate import Call, generate_batch
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.variants import Variant

Pair = tuple[Prompt, int]
"""A prompt and a seed."""


class Trials:
    """Generates and compares on one pipeline.

    Args:
        pipe: unmerged.
        call: see :func:`tomadiff.evaluation.runs.generate.call_of`.
        judge: a network whose features are compared, if one is at hand.
    """

    def __init__(self, pipe: Any, call: Call, judge: Network | None = None) -> None:
        self.pipe, self.call, self.judge = pipe, call, judge
        self.computed = 1.0  # share of the denoising steps of the last image
        self._unmerged: dict[tuple[tuple[str, int], ...], list[Image.Image]] = {}
        self._flops: int | None = None

    def generate(self, pairs: Sequence[Pair], candidate: Variant | None = None) -> list[Image.Image]:
        """Images, unmerged without a candidate."""
        prompts, seeds = [prompt for prompt, _ in pairs], [seed for _, seed in pairs]
        if candidate is None:
            return generate_batch(self.pipe, prompts, seeds, self.call)[0]
        with candidate.on(self.pipe) as patch:
            images = generate_batch(self.pipe, prompts, seeds, self.call)[0]
            self.computed = 1.0 if patch is None else patch.pattern.share
            return images

    def unmerged(self, pairs: Sequence[Pair]) -> list[Image.Image]:
        """What images are compared with; generated once."""
        key = tuple((prompt.text, seed) for prompt, seed in pairs)
        if key not in self._unmerged:
            self._unmerged[key] = self.generate(pairs)
        return self._unmerged[key]

    def cost(self, pair: Pair, candidate: Variant) -> float:
        """FLOPs of one whole image with the candidate, planning included, as a share of the unmerged one's."""
        return self._count(pair, candidate) / self.flops(pair)

    def flops(self, pair: Pair) -> int:
        """FLOPs of one whole unmerged image, text encoders and decoder included."""
        if self._flops is None:
            self._flops = self._count(pair)
        return self._flops

    def _count(self, pair: Pair, candidate: Variant | None = None) -> int:
        with flop_counter() as counter:
            self.generate([pair], candidate)
        return int(counter.get_total_flops())

    def compare(self, pairs: Sequence[Pair], candidate: Variant) -> list[Mapping[str, float]]:
        """Generate ``pairs`` with the candidate; for each, how far it is from the unmerged image, by metric.

        ``computed`` is the share of denoising steps that were computed. Where a tolerance decides, the worst image of a
        batch decides for all, so each is generated alone.
        """
        if len(pairs) > 1 and candidate.forecast is not None and not candidate.forecast.is_fixed:
            return [figures for pair in pairs for figures in self.compare([pair], candidate)]
        generated, wanted = self.generate(pairs, candidate), self.unmerged(pairs)
        pixels, targets = to_pixels(generated), to_pixels(wanted)
        figures = pixel_metrics(pixels, targets)
        if self.judge is not None:
            seen, meant = image_features(self.judge, generated), image_features(self.judge, wanted)
            figures["judge"] = cosine_distance(seen, meant)
        whole = {"computed": self.computed}
        return [{name: float(values[place]) for name, values in figures.items()} | whole for place in range(len(pairs))]
