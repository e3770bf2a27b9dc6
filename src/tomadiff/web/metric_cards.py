"""How far two images are apart and how long they took, as metrics and as a row of cards."""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image

from tomadiff.evaluation.metrics import distances
from tomadiff.evaluation.metrics.distances import metric
from tomadiff.evaluation.metrics.features import AnyNetwork, PairNetwork, image_features, to_pixels
from tomadiff.evaluation.metrics.networks import gives
from tomadiff.evaluation.report.markup import Markup, tag


def apart(full: Image.Image, other: Image.Image, networks: Mapping[str, AnyNetwork]) -> dict[str, float]:
    """PSNR, SSIM, and the distance that each network sees, by their names in tables."""
    pixels = distances.pixel_metrics(to_pixels([other]), to_pixels([full]))
    found = {name: float(pixels[name]) for name in ("psnr", "ssim")}
    for name, network in networks.items():
        found[gives(name).pair or name] = _seen(network, full, other)
    return found


def _seen(network: AnyNetwork, full: Image.Image, other: Image.Image) -> float:
    if isinstance(network, PairNetwork):
        return float(network.distances(to_pixels([other]), to_pixels([full])))
    features = image_features(network, [other, full])
    return float(distances.cosine_distance(features[:1], features[1:]))


def written(name: str, value: float) -> str:
    """A metric's value with its digits; equal images are infinitely many decibels apart."""
    return "equal" if name == "psnr" and value >= distances.PSNR_CEILING else f"{value:z.{metric(name).digits}f}"


def cards(
    before: float,
    after: float,
    metrics: Mapping[str, float],
    reused: bool = False,
    title: str = "merged",
) -> Markup:
    """A row of cards: both times in seconds, the speed-up if they were taken in one go, and every metric.

    Args:
        before: seconds of the full image.
        after: seconds of the other one.
        metrics: by name; see :func:`apart`.
        reused: whether the full image, and so its time, is from before.
        title: of the other image; empty if nothing was done differently, and its time says nothing.
    """
    times = [_card(f"{before:.2f} s", "in full" + (", cached" if reused else ""))]
    times += [_card(f"{after:.2f} s", title or "the same")]
    times += [_card(f"{before / after:.2f}×", "speed-up")] if title and not reused else []
    quality = [_card(written(name, value), metric(name).title, metric(name).about) for name, value in metrics.items()]
    return tag("dl", times, quality, class_="cards")


def _card(value: str, title: str, about: str | None = None) -> Markup:
    return tag("div", tag("dd", value), tag("dt", title), title=about, class_="card")
