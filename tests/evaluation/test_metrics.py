"""Metrics against oracles nobody here wrote, and against answers known in closed form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.evaluation.networks import image
from tomadiff.errors import SettingError, ShapeError
from tomadiff.evaluation.metrics import distances
from tomadiff.evaluation.metrics.features import to_pixels

SIZES = [(32, 32), (61, 40), (11, 11)]
SETS = [(200, 150, 16), (40, 60, 64), (30, 30, 30)]  # N, M, D: more samples than dimensions, and fewer


def images(size: tuple[int, int], noise: float, count: int = 3) -> tuple[Tensor, Tensor]:
    clean = to_pixels([image(seed, size) for seed in range(count)])
    return clean, to_pixels([image(seed, size, noise) for seed in range(count)])


def features(n: int, m: int, d: int) -> tuple[Tensor, Tensor]:
    """Two sets with different means and correlated, different covariances."""
    own = torch.Generator().manual_seed(n + m + d)
    mix_x, mix_y = torch.randn(2, d, d, generator=own) / d**0.5
    return torch.randn(n, d, generator=own) @ mix_x, torch.randn(m, d, generator=own) @ mix_y + 0.3


# ---------------------------------------------------------------------------------------------- pixels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_pixel_metrics_equal_scikit_image(size: tuple[int, int], noise: float) -> None:
    skimage = pytest.importorskip("skimage.metrics")
    ours, theirs = images(size, noise)
    for number, (one, other) in enumerate(zip(ours.double().numpy(), theirs.double().numpy(), strict=True)):
        at = slice(number, number + 1)
        error = skimage.mean_squared_error(one * 255, other * 255)
        assert distances.mse(ours[at], theirs[at]).item() == pytest.approx(error, rel=1e-5)
        decibels = skimage.peak_signal_noise_ratio(one, other, data_range=1)
        assert distances.psnr(ours[at], theirs[at]).item() == pytest.approx(decibels, abs=1e-4)
        similarity = skimage.structural_similarity(
            one, other, channel_axis=0, data_range=1, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
        )
        assert distances.ssim(ours[at], theirs[at]).item() == pytest.approx(similarity, abs=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_pixel_metrics_of_equal_images(size: tuple[int, int]) -> None:
    ours, _ = images(size, 0.1)
    assert distances.mse(ours, ours).tolist() == [0] * 3
    assert distances.psnr(ours, ours).tolist() == [math.inf] * 3
    assert distances.ssim(ours, ours).tolist() == pytest.approx([1] * 3)


def test_mse_counts_pixels_as_the_paper_does_unless_told() -> None:
    black, grey = torch.zeros(1, 3, 16, 16), torch.full((1, 3, 16, 16), 0.1)
    assert distances.mse(black, grey).item() == pytest.approx(25.5**2)
    assert distances.mse(black, grey, scale=1).item() == pytest.approx(0.01)
    assert distances.psnr(black, grey).item() == pytest.approx(20)


def test_pixel_metrics_look_at_each_image_alone() -> None:
    ours, theirs = images((32, 32), 0.2, count=5)
    for measure in (distances.mse, distances.psnr, distances.ssim):
        alone = torch.cat([measure(ours[i : i + 1], theirs[i : i + 1]) for i in range(5)])
        assert torch.allclose(measure(ours, theirs), alone, rtol=1e-12)


# ---------------------------------------------------------------------------------------------- Fréchet
@pytest.mark.parametrize(("n", "m", "d"), SETS)
def test_frechet_distance_equals_scipys_matrix_root(n: int, m: int, d: int) -> None:
    linalg = pytest.importorskip("scipy.linalg")
    x, y = (side.double().numpy() for side in features(n, m, d))
    cov_x, cov_y = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    # For singular covariances sqrtm needs the customary nudge off zero, which costs a little accuracy.
    nudge = 1e-12 * np.eye(d) if min(n, m) <= d else 0
    root = linalg.sqrtm((cov_x + nudge) @ (cov_y + nudge)).real
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(cov_x) + np.trace(cov_y) - 2 * np.trace(root)
    found = distances.frechet_distance(torch.from_numpy(x), torch.from_numpy(y)).item()
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


class Same(nn.Module):
    """Features as they are, where torchmetrics wants a network."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_frechet_distance_needs_no_singular_values(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.randn(30, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    wanted = distances.frechet_distance(x, y).item()

    def fails(_: torch.Tensor) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "svdvals", fails)
    assert distances.frechet_distance(x, y).item() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("n", "m", "d"), SETS)
def test_frechet_distance_equals_torchmetrics(n: int, m: int, d: int) -> None:
    fid = pytest.importorskip("torchmetrics.image.fid").FrechetInceptionDistance(feature=Same(d))
    fid.set_dtype(torch.float64)
    x, y = (side.double() for side in features(n, m, d))
    fid.update(x, real=True)
    fid.update(y, real=False)
    assert distances.frechet_distance(x, y).item() == pytest.approx(fid.compute().item(), rel=1e-4, abs=1e-4)


def test_set_distances_equal_torch_fidelity() -> None:
    pytest.importorskip("torchvision", reason="torch-fidelity needs torchvision, which has no build for this torch")
    fid, kid = (pytest.importorskip(f"torch_fidelity.metric_{name}") for name in ("fid", "kid"))
    x, y = (side.double() for side in features(150, 150, 16))
    held = fid.fid_statistics_to_metric(fid.fid_features_to_statistics(x), fid.fid_features_to_statistics(y), False)
    assert distances.frechet_distance(x, y).item() == pytest.approx(held[fid.KEY_METRIC_FID], abs=1e-4)
    kernels = [(a @ b.T / 16 + 1).numpy() ** 3 for a, b in ((x, x), (x, y), (y, y))]
    assert distances.kernel_distance(x, y).item() == pytest.approx(kid.mmd2(*kernels), abs=1e-4)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_frechet_distance_of_a_set_to_itself_is_zero_and_to_its_shift_the_shift(d: int, seed: int) -> None:
    x = torch.randn(25, d, generator=torch.Generator().manual_seed(seed))
    shift = torch.linspace(-2, 2, d) + 0.5
    assert distances.frechet_distance(x, x).item() == pytest.approx(0, abs=1e-10)
    assert distances.frechet_distance(x, x + shift).item() == pytest.approx(shift.square().sum().item(), rel=1e-4)
    scaled = (3 - 1) ** 2 * x.double().var(0).sum().item()  # Gaussians of standard deviations 1 and 3
    about_zero = x - x.mean(0)
    assert distances.frechet_distance(about_zero, 3 * about_zero).item() == pytest.approx(scaled, rel=1e-4)


def test_frechet_distance_of_many_samples_approaches_the_closed_form() -> None:
    own = torch.Generator().manual_seed(0)
    scale_x, scale_y, shift = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([1.5, 1.0, 0.5]), torch.tensor([1.0, 0, -2])
    x, y = torch.randn(2, 200_000, 3, generator=own)
    expected = shift.square().sum() + (scale_x - scale_y).square().sum()
    found = distances.frechet_distance(x * scale_x, y * scale_y + shift)
    assert found.item() == pytest.approx(expected.item(), abs=0.05)


# ---------------------------------------------------------------------------------------------- kernel
@pytest.mark.parametrize(("n", "m", "d"), SETS)
def test_kernel_distance_equals_scikit_learns_kernels(n: int, m: int, d: int) -> None:
    kernel = pytest.importorskip("sklearn.metrics.pairwise").polynomial_kernel
    x, y = (side.double().numpy() for side in features(n, m, d))
    xx, xy, yy = (kernel(a, b, degree=3, coef0=1) for a, b in ((x, x), (x, y), (y, y)))
    expected = xx[~np.eye(n, dtype=bool)].mean() + yy[~np.eye(m, dtype=bool)].mean() - 2 * xy.mean()
    found = distances.kernel_distance(torch.from_numpy(x), torch.from_numpy(y)).item()
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_kernel_distance_equals_torchmetrics() -> None:
    poly_mmd = pytest.importorskip("torchmetrics.image.kid").poly_mmd
    x, y = (side.double() for side in features(80, 80, 16))
    assert distances.kernel_distance(x, y).item() == pytest.approx(poly_mmd(x, y).item(), abs=1e-4)


def test_kernel_distance_is_unbiased_and_sees_a_shift() -> None:
    own = torch.Generator().manual_seed(0)
    same = torch.stack([distances.kernel_distance(*torch.randn(2, 30, 4, generator=own)) for _ in range(400)])
    assert abs(same.mean()) < 3 * same.std() / 20
    assert same.min() < 0
    assert distances.kernel_distance(torch.randn(30, 4), torch.randn(30, 4) + 1) > 0.5


def test_kernel_distance_of_subsets_agrees_and_keeps_to_its_own_chance() -> None:
    x, y = features(100, 120, 16)
    before = torch.get_rng_state()
    parts = distances.kernel_distance(x, y, subset=50, subsets=200)
    assert torch.equal(before, torch.get_rng_state())
    assert parts.item() == pytest.approx(distances.kernel_distance(x, y).item(), rel=0.05)
    assert distances.kernel_distance(x, y, subset=50, subsets=200) == parts
    assert distances.kernel_distance(x, y, subset=50, subsets=200, seed=1) != parts


# ---------------------------------------------------------------------------------------------- cosines
def test_cosines_equal_scipy_and_scores_are_percent() -> None:
    distance = pytest.importorskip("scipy.spatial.distance")
    x, y = features(20, 20, 8)
    expected = [distance.cosine(a, b) for a, b in zip(x.numpy(), y.numpy(), strict=True)]
    assert distances.cosine_distance(x, y).tolist() == pytest.approx(expected, abs=1e-4)
    assert distances.clip_score(x, y).tolist() == pytest.approx([100 * (1 - value) for value in expected], abs=1e-3)
    assert distances.cosine_distance(x, 5 * x).tolist() == pytest.approx([0] * 20, abs=1e-6)


# ---------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize("measure", [distances.mse, distances.psnr, distances.ssim])
def test_images_that_do_not_match_are_refused(measure) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ShapeError, match=r"\(1, 3, 16, 16\).*\(1, 3, 16, 15\)"):
        measure(torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 15))
    with pytest.raises(ShapeError, match="uint8"):
        measure(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), torch.zeros(1, 3, 16, 16, dtype=torch.uint8))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ShapeError, match="10×20"):
        distances.ssim(torch.zeros(1, 3, 10, 20), torch.zeros(1, 3, 10, 20))
    with pytest.raises(ShapeError, match="at least 2 rows"):
        distances.frechet_distance(torch.zeros(1, 4), torch.zeros(5, 4))
    with pytest.raises(ShapeError, match="one shape"):
        distances.cosine_distance(torch.zeros(3, 4), torch.zeros(5, 4))
    with pytest.raises(SettingError, match="subset=9 is more than the 5"):
        distances.kernel_distance(torch.zeros(10, 4), torch.zeros(5, 4), subset=9)
