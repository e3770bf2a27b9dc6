"""Measure a run: every method against the unmerged images of the same prompts and seeds.

Numbers per image go back into the run's samples; averages with confidence intervals go into ``summary.json``.  The
samples are taken in the order of their keys, so that the result is the same however the run was interrupted or shared
among processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from tomadiff.errors import ShapeError
from tomadiff.evaluation.metrics import distances
from tomadiff.evaluation.metrics.features import (
    AnyNetwork,
    Network,
    NetworkUnavailable,
    Opener,
    PairNetwork,
    TextNetwork,
    batches,
    image_features,
    text_features,
    to_pixels,
)
from tomadiff.evaluation.metrics.networks import Gives, gives, openers
from tomadiff.evaluation.metrics.samples import Group, grouped, images_in, matched, resampled
from tomadiff.evaluation.metrics.statistics import (
    RESAMPLES,
    SET_RESAMPLES,
    Interval,
    mean_interval,
    set_interval,
)
from tomadiff.evaluation.metrics.table import Results, Row
from tomadiff.evaluation.runs.record import Run, RunError, Sample

MANY = 5000  # features per set, above which KID looks at subsets


@dataclass(frozen=True)
class Sampling:
    """How intervals are made, and how many images are looked at together."""

    confidence: float = 0.95
    resamples: int = RESAMPLES
    set_resamples: int = SET_RESAMPLES
    seed: int = 0
    batch: int = 16


def measure(
    run: Run,
    reference: str = "full",
    networks: Mapping[str, Opener] | None = None,
    reference_images: Path | None = None,
    sampling: Sampling | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Results:
    """Measure what was generated so far, write it into the run's folder, and return it.

    What other networks said of the same images before stays: networks may come one after the other.

    Args:
        run: with samples of ``reference`` and of other methods.
        reference: the method that the others are compared with.
        networks: how to open each network (:func:`tomadiff.evaluation.metrics.networks.openers`), all of them unless
            told; one that cannot be had is listed in ``Results.missing``, and the rest is measured.
        reference_images: a folder of images to compare every set with as well, the reference's included.
        sampling: how intervals are made.
        say: is told what is being measured.
    """
    work = _Work(run, reference, sampling or Sampling(), say)
    work.pixels()
    for name, opener in (openers() if networks is None else networks).items():
        work.network(name, opener, reference_images)
    work.keep_earlier()
    work.store()
    results = work.results()
    results.save(run.folder)
    return results


class _Work:
    """One measurement under way: samples by group, numbers per sample, intervals per set."""

    def __init__(self, run: Run, reference: str, sampling: Sampling, say: Callable[[str], None]) -> None:
        self.run, self.reference, self.sampling, self.say = run, reference, sampling, say
        self.groups = grouped(run)
        self.anchor = self._anchor()
        self.samples = [sample for group in self.groups.values() for sample in group.values()]
        anchors = self.groups[self.anchor]
        self.pairs = {name: matched(group, anchors) for name, group in self.groups.items() if name != self.anchor}
        self.values: dict[str, dict[str, float]] = {sample.key: {} for sample in self.samples}
        self.sets: dict[Group, dict[str, Interval]] = {name: {} for name in self.groups}
        self.missing: dict[str, str] = {}

    def _anchor(self) -> Group:
        found = [group for group in self.groups if group[0] == self.reference]
        if len(found) != 1:
            there = ", ".join(f"{method} {ratio:g}" for method, ratio in self.groups) or "nothing"
            raise RunError(
                f"{self.run.folder} holds {len(found)} ratios of {self.reference!r}, and one is needed to compare "
                f"with; it holds {there}."
            )
        return found[0]

    # -------------------------------------------------------------------------------- per image
    def pixels(self) -> None:
        """Every metric of pixels, of every pair."""
        self.say("pixels")
        wanted = {name: one.of_pixels for name, one in distances.METRICS.items() if one.of_pixels is not None}
        for part, images, others in self._pixel_batches():
            for name, function in wanted.items():
                try:
                    self._note(name, part, function(images, others))
                except ShapeError as problem:  # images smaller than SSIM's window; the rest can still be measured
                    self.missing[name] = str(problem)

    def _pixel_batches(self) -> Iterator[tuple[list[Sample], Tensor, Tensor]]:
        everyone = (pair for pairs in self.pairs.values() for pair in pairs)
        for part in batches(everyone, self.sampling.batch):
            own, others = ([self.run.image(pair[side].key) for pair in part] for side in (0, 1))
            if len({image.size for image in (*own, *others)}) > 1:
                raise RunError(f"{self.run.folder}: images differ in size, so they cannot be compared.")
            yield [sample for sample, _ in part], to_pixels(own), to_pixels(others)

    def _note(self, name: str, samples: Sequence[Sample], numbers: Tensor) -> None:
        for sample, number in zip(samples, numbers.tolist(), strict=True):
            self.values[sample.key][name] = number

    # -------------------------------------------------------------------------------- by network
    def network(self, name: str, opener: Opener, reference_images: Path | None) -> None:
        """Everything that one network gives, or why it cannot be had."""
        self.say(name)
        wanted = gives(name)
        try:
            network = opener()
        except NetworkUnavailable as problem:
            self.missing.update(dict.fromkeys(wanted.names, str(problem)))
            return
        self._compare(network, wanted, reference_images)

    def _compare(self, network: AnyNetwork, wanted: Gives, reference_images: Path | None) -> None:
        if isinstance(network, PairNetwork):
            for part, images, others in self._pixel_batches():
                self._note(str(wanted.pair), part, network.distances(images, others))
            return
        features = self._features(network)
        if wanted.pair:
            self._distances(wanted.pair, features)
        if wanted.text and isinstance(network, TextNetwork):
            self._scores(wanted.text, network, features)
        if wanted.frechet or wanted.kernel:
            self._sets(network, wanted, features, reference_images)

    def _features(self, network: Network) -> dict[str, Tensor]:
        """Features ``(D,)`` by the key of the sample."""
        generated = (self.run.image(sample.key) for sample in self.samples)
        rows = image_features(network, generated, self.sampling.batch)
        return {sample.key: row for sample, row in zip(self.samples, rows, strict=True)}

    def _distances(self, name: str, features: Mapping[str, Tensor]) -> None:
        for pairs in filter(None, self.pairs.values()):
            own, others = (torch.stack([features[pair[side].key] for pair in pairs]) for side in (0, 1))
            self._note(name, [sample for sample, _ in pairs], distances.cosine_distance(own, others))

    def _scores(self, name: str, network: TextNetwork, features: Mapping[str, Tensor]) -> None:
        prompts = sorted({sample.prompt for sample in self.samples})
        read = dict(zip(prompts, text_features(network, prompts), strict=True))
        shown = torch.stack([features[sample.key] for sample in self.samples])
        asked = torch.stack([read[sample.prompt] for sample in self.samples])
        self._note(name, self.samples, distances.clip_score(shown, asked))

    # -------------------------------------------------------------------------------- whole sets
    def _sets(
        self, network: Network, wanted: Gives, features: Mapping[str, Tensor], reference_images: Path | None
    ) -> None:
        outside = (
            None
            if reference_images is None
            else image_features(network, images_in(reference_images), self.sampling.batch)
        )
        for kind, name in ((distances.frechet_distance, wanted.frechet), (_kernel, wanted.kernel)):
            for group in self.groups if name else ():
                self._set(kind, str(name), group, features, outside)

    def _set(
        self,
        kind: Callable[[Tensor, Tensor], Tensor],
        name: str,
        group: Group,
        features: Mapping[str, Tensor],
        outside: Tensor | None,
    ) -> None:
        interval = partial(
            set_interval, kind, confidence=self.sampling.confidence, resamples=self.sampling.set_resamples,
            seed=self.sampling.seed,
        )  # fmt: skip
        pairs = self.pairs.get(group, [])
        if len(pairs) > 1:
            own, others = (torch.stack([features[pair[side].key] for pair in pairs]) for side in (0, 1))
            self.sets[group][name] = interval(own, others, paired=True)
        elif group != self.anchor:
            self.missing[name] = "A set of images has at least two; generate more prompts or seeds."
        if outside is not None and min(len(self.groups[group]), len(outside)) > 1:
            whole = torch.stack([features[sample.key] for sample in self.groups[group].values()])
            self.sets[group][f"{name}_reference"] = interval(whole, outside)

    # -------------------------------------------------------------------------------- results
    def keep_earlier(self) -> None:
        """What was measured before and is not measured now, of groups that gained no image in between."""
        if not (self.run.folder / "summary.json").is_file():
            return
        before = Results.load(self.run.folder)
        for row in before.rows if before.reference == self.reference else ():
            there = list(self.groups.get((row.method, row.ratio), {}).values())
            if row.count == len(there):
                now = set(self.sets[row.method, row.ratio]).union(*(self.values[sample.key] for sample in there))
                for name in sorted(row.metrics.keys() - now):
                    self._keep(name, row, there)

    def _keep(self, name: str, row: Row, there: Sequence[Sample]) -> None:
        self.missing.pop(name, None)
        if name.removesuffix("_reference").endswith(("fid", "kid")):
            self.sets[row.method, row.ratio][name] = row.metrics[name]
        for sample in there:
            if name in sample.metrics:
                self.values[sample.key][name] = sample.metrics[name]

    def store(self) -> None:
        """Put the numbers of each image into the run's samples, where they are new."""
        for sample in self.samples:
            now = {**sample.metrics, **self.values[sample.key]}
            if now != dict(sample.metrics):
                self.run.append(replace(sample, metrics=now))

    def results(self) -> Results:
        """The table: the reference first, then by method and ratio."""
        order = sorted(self.groups, key=lambda group: (group != self.anchor, group))
        unit = "prompts" if resampled([sample.prompt for sample in self.samples]) else "samples"
        rows = tuple(self._row(group) for group in order)
        return Results(self.reference, rows, self.missing, unit, self.sampling.confidence)

    def _row(self, group: Group) -> Row:
        samples = list(self.groups[group].values())
        names = dict.fromkeys(name for sample in samples for name in self.values[sample.key])
        means = {name: self._mean(name, samples) for name in names}
        seconds, flops = median(s.seconds for s in samples), sum(s.flops for s in samples) / len(samples)
        return Row(*group, len(samples), seconds, flops, {**means, **self.sets[group]})

    def _mean(self, name: str, samples: Sequence[Sample]) -> Interval:
        having = [sample for sample in samples if name in self.values[sample.key]]
        values = torch.tensor([self.values[sample.key][name] for sample in having], dtype=torch.float64)
        prompts = resampled([sample.prompt for sample in having])
        return mean_interval(values, prompts, self.sampling.confidence, self.sampling.resamples, self.sampling.seed)


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """KID of everything at once, or of ten subsets of a thousand where that would not fit."""
    return distances.kernel_distance(x, y, subset=1000 if max(len(x), len(y)) > MANY else None, subsets=10)
