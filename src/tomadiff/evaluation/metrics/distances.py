"""How far images are apart: pure functions on tensors, without a network.

Two kinds, and the names of their arguments tell which:

- on pixels: ``images`` and ``others`` are ``(B, 3, H, W)`` with values in [0, 1]; the output is ``(B,)``, one number
  per pair of images;
- on features ``(N, D)`` of any network (see ``features.py``): per pair ``(N,)``, or one number for two whole sets.

Everything is computed in float64: distances of nearly equal images are small differences of large sums.

:data:`METRICS` says how each is shown, and those that networks give as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tomadiff.errors import SettingError, ShapeError, require_count

WINDOW, SIGMA = 11, 1.5  # of SSIM's Gaussian, as in Wang et al. 2004
PSNR_CEILING = 100.0  # dB, for equal images


# ---------------------------------------------------------------------------------------------- pixels
def mse(images: Tensor, others: Tensor, scale: float = 255.0) -> Tensor:
    """Mean squared error per image ``(B,)``, of pixels that run from 0 to ``scale``.

    The paper's tables count pixels from 0 to 255, hence the default; ``scale=1`` gives the error of the values as they
    are, 65,025 times smaller.
    """
    _require_images(images, others)
    return ((images.double() - others.double()) * scale).square().mean(dim=(1, 2, 3))


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Peak signal-to-noise ratio per image ``(B,)`` in dB; infinite where two images are equal."""
    return -10 * mse(images, others, scale=1.0).log10()


def finite_psnr(images: Tensor, others: Tensor) -> Tensor:
    """:func:`psnr`, at most 100 dB: an average with an infinity in it says nothing."""
    return psnr(images, others).clamp(max=PSNR_CEILING)


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Structural similarity per image ``(B,)``, 1 where equal (Wang et al., 2004).

    Gaussian windows of 11 pixels that lie wholly inside the image, population covariances, each colour channel by
    itself and then averaged: the original's choices.
    """
    _require_images(images, others)
    if min(images.shape[-2:]) < WINDOW:
        raise ShapeError(f"SSIM looks through windows of {WINDOW} pixels; the images are {_size(images)}.")
    x, y = images.double(), others.double()
    mean_x, mean_y = _blur(x), _blur(y)
    var_x, var_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    light = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (var_x + var_y + c2)
    return (light * structure).mean(dim=(1, 2, 3))


def _blur(images: Tensor) -> Tensor:
    """Gaussian means over every window that fits: ``(B, C, H, W)`` → ``(B, C, H - 10, W - 10)``."""
    place = torch.arange(WINDOW, dtype=images.dtype, device=images.device) - WINDOW // 2
    bell = torch.exp(-(place**2) / (2 * SIGMA**2))
    bell = bell / bell.sum()
    flat = images.flatten(0, 1)[:, None]
    blurred = F.conv2d(F.conv2d(flat, bell.view(1, 1, -1, 1)), bell.view(1, 1, 1, -1))
    return blurred.view(*images.shape[:2], *blurred.shape[-2:])


# ---------------------------------------------------------------------------------------------- features, per pair
def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """``1 − cos`` of the angle between matching rows of ``(N, D)``: ``(N,)``, from 0 (same direction) to 2."""
    _require_features(x, y, paired=True)
    return 1 - F.cosine_similarity(x.double(), y.double(), dim=1)


def clip_score(image_features: Tensor, text_features: Tensor) -> Tensor:
    """CLIP-T: 100 times the cosine between each image and its own prompt, ``(N, D)`` twice → ``(N,)``."""
    return 100 * (1 - cosine_distance(image_features, text_features))


# ---------------------------------------------------------------------------------------------- features, whole sets
def frechet_distance(x: Tensor, y: Tensor) -> Tensor:
    """Fréchet distance between Gaussians fitted to ``(N, D)`` and ``(M, D)`` features; FID if Inception made them.

    ``|μx − μy|² + tr Σx + tr Σy − 2 tr √(Σx Σy)`` (Heusel et al., 2017).  With ``Σ = AᵀA`` the last trace is the
    nuclear norm of ``Ax Ayᵀ``, so no matrix square root is taken and few samples in many dimensions are no problem.
    """
    _require_features(x, y, least=2)
    mean_x, factor_x = _gaussian(x.double())
    mean_y, factor_y = _gaussian(y.double())
    spread = factor_x.square().sum() + factor_y.square().sum()
    overlap = _nuclear_norm(factor_x @ factor_y.T)
    return ((mean_x - mean_y).square().sum() + spread - 2 * overlap).clamp(min=0)  # rounding can dip below zero


def _nuclear_norm(matrix: Tensor) -> Tensor:
    """Sum of singular values; an SVD may fail to converge, and what the eigenvalues lack in precision is below 1e-6."""
    try:
        norm: Tensor = torch.linalg.svdvals(matrix).sum()
    except RuntimeError:  # LinAlgError is one
        norm = torch.linalg.eigvalsh(matrix @ matrix.T).clamp(min=0).sqrt().sum()
    return norm


def _gaussian(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(D,)``, and a factor ``A`` ``(min(N, D), D)`` of the covariance: ``Σ = AᵀA``."""
    mean = x.mean(0)
    return mean, torch.linalg.qr(x - mean, mode="r").R / (len(x) - 1) ** 0.5


def kernel_distance(x: Tensor, y: Tensor, subset: int | None = None, subsets: int = 100, seed: int = 0) -> Tensor:
    """Squared maximum mean discrepancy of ``(N, D)`` and ``(M, D)`` features; KID if Inception made them.

    Unbiased, so it can fall below zero, with the cubic kernel ``(x·y / D + 1)³`` (Bińkowski et al., 2018).

    Args:
        x: features of one set.
        y: features of the other.
        subset: average over random subsets of this many from each set (customary: 1000), which bounds memory;
            by default everything is compared with everything, once.
        subsets: how many of them.
        seed: of the subsets' own generator.
    """
    _require_features(x, y, least=2)
    if subset is None:
        return _discrepancy(x.double(), y.double())
    require_count("subset", subset, least=2)
    if subset > min(len(x), len(y)):
        raise SettingError(f"subset={subset} is more than the {min(len(x), len(y))} samples there are.")
    parts = _subsets(len(x), len(y), subset, subsets, seed)
    return torch.stack([_discrepancy(x[rows].double(), y[others].double()) for rows, others in parts]).mean()


def _subsets(n: int, m: int, size: int, times: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    own = torch.Generator().manual_seed(seed)
    for _ in range(times):
        yield torch.randperm(n, generator=own)[:size], torch.randperm(m, generator=own)[:size]


def _discrepancy(x: Tensor, y: Tensor) -> Tensor:
    n, m = len(x), len(y)
    within_x, within_y, between = _cubic(x, x), _cubic(y, y), _cubic(x, y)
    # A sample is not compared with itself: that is what makes the estimate unbiased.
    mean_x = (within_x.sum() - within_x.diagonal().sum()) / (n * (n - 1))
    mean_y = (within_y.sum() - within_y.diagonal().sum()) / (m * (m - 1))
    return mean_x + mean_y - 2 * between.mean()


def _cubic(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


# ---------------------------------------------------------------------------------------------- checks
def _require_images(images: Tensor, others: Tensor) -> None:
    if images.ndim != 4 or images.shape != others.shape or not images.is_floating_point():
        raise ShapeError(
            f"Images to compare are two float tensors (B, 3, H, W) of one shape, in [0, 1]; given were "
            f"{tuple(images.shape)} {images.dtype} and {tuple(others.shape)} {others.dtype}."
        )


def _require_features(x: Tensor, y: Tensor, paired: bool = False, least: int = 1) -> None:
    fits = x.ndim == y.ndim == 2 and x.shape[1] == y.shape[1] and (not paired or len(x) == len(y))
    if not fits or min(len(x), len(y)) < least:
        wanted = "two tensors (N, D) of one shape" if paired else f"(N, D) and (M, D) of at least {least} rows"
        raise ShapeError(f"Features to compare are {wanted}; given were {tuple(x.shape)} and {tuple(y.shape)}.")


def _size(images: Tensor) -> str:
    return f"{images.shape[-2]}×{images.shape[-1]}"


# ---------------------------------------------------------------------------------------------- all metrics
@dataclass(frozen=True)
class Metric:
    """How to show a metric, and how to compute it where pixels are all it needs.

    Attributes:
        title: for headings.
        better: "higher" or "lower".
        digits: after the point.
        about: one line for people who meet it for the first time.
        of_pixels: the function of ``images, others``; ``None`` of what a network gives.
    """

    title: str
    better: str
    digits: int
    about: str
    of_pixels: Callable[[Tensor, Tensor], Tensor] | None = None


METRICS = {
    "mse": Metric("MSE", "lower", 1, "mean squared error of pixels 0..255 against the full image", mse),
    "psnr": Metric(
        "PSNR dB", "higher", 2, "the same on a logarithmic scale; 100 where two images are equal", finite_psnr
    ),
    "ssim": Metric("SSIM", "higher", 4, "structural similarity to the full image", ssim),
    "lpips": Metric("LPIPS", "lower", 4, "learned perceptual distance to the full image"),
    "dino": Metric("DINO", "lower", 4, "cosine distance of DINO features to the full image"),
    "clip_i": Metric("CLIP-I", "lower", 4, "cosine distance of CLIP features to the full image"),
    "clip_t": Metric("CLIP-T", "higher", 2, "100 × cosine of image and prompt under CLIP"),
    "judge": Metric("judge", "lower", 4, "cosine distance of emoji-judge features to the full image"),
    "judge_t": Metric("judge-T", "higher", 2, "100 × cosine of image and prompt under emoji-judge"),
    "fid": Metric("FID", "lower", 2, "Fréchet distance of Inception features to the unmerged set"),
    "kid": Metric("KID", "lower", 5, "kernel distance of Inception features to the unmerged set"),
    "judge_fid": Metric("judge-FD", "lower", 4, "Fréchet distance of emoji-judge features to the unmerged set"),
    "judge_kid": Metric("judge-KD", "lower", 5, "kernel distance of emoji-judge features to the unmerged set"),
}
"""By name; a function of pixels that is added here is measured and shown everywhere."""


def metric(name: str) -> Metric:
    """How to show a metric by its name in results; one nobody described is shown under its name."""
    bare = name.removesuffix("_reference")
    known = METRICS.get(bare, Metric(bare, "lower", 4, bare))
    if bare == name:
        return known
    about = known.about.replace("the unmerged set", "the reference images")
    return Metric(f"{known.title} (reference)", known.better, known.digits, about)


def pixel_metrics(images: Tensor, others: Tensor) -> dict[str, Tensor]:
    """Every metric of pixels by name, each ``(B,)``."""
    return {name: one.of_pixels(images, others) for name, one in METRICS.items() if one.of_pixels is not None}
