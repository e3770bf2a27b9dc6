import math

import numpy as np
import torch

from tomadiff import Grid, ToMA
from tomadiff.evaluation.report.figures import clusters, merge_map, merge_sample, psnr
from tomadiff.evaluation.runs.synthetic_image import synthetic_image, to_colours, to_tokens
from tomadiff.merging.plan import MergePlan


def test_the_landscape_is_an_image_and_always_the_same_one() -> None:
    first, again, other = synthetic_image(64, seed=7), synthetic_image(64, seed=7), synthetic_image(64, seed=8)
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.float32
    assert 0 <= first.min() < 0.1 < 0.9 < first.max() <= 1
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_tokens_of_equal_patches_are_equal_and_of_others_are_not() -> None:
    image = np.zeros((64, 64, 3), np.float32)
    image[:, 32:] = 1
    tokens = to_tokens(image, side=8, channels=16).unflatten(1, (8, 8))[0]
    torch.testing.assert_close(tokens[:, 0], tokens[:, 3])
    assert torch.cosine_similarity(tokens[0, 0], tokens[0, 7], dim=0) < 0


def test_a_sample_keeps_what_its_ratio_says_and_loses_more_with_more_merging() -> None:
    image = synthetic_image(128)
    samples = [merge_sample(image, ToMA(ratio=ratio), side=32, repeats=1) for ratio in (0.25, 0.5, 0.75)]
    assert [sample.kept for sample in samples] == [768, 512, 256]
    assert samples[0].psnr > samples[1].psnr > samples[2].psnr > 20


def test_psnr() -> None:
    assert psnr(torch.ones(3), torch.ones(3)) == math.inf
    assert math.isclose(psnr(torch.zeros(4), torch.full((4,), 0.1)), 20, abs_tol=1e-5)


def test_clusters_of_the_plan_that_merges_nothing_are_single_tokens() -> None:
    labels = clusters(MergePlan.identity(Grid(3, 5)), Grid(3, 5))
    assert np.array_equal(labels, np.arange(15).reshape(3, 5))


def test_merge_map_shows_destinations_above_and_clusters_below() -> None:
    image = synthetic_image(64)
    sample = merge_sample(image, ToMA(ratio=0.5), side=16, repeats=1)
    figure = merge_map(image, [sample])
    assert figure.mode == "RGB"
    assert figure.width < figure.height  # two columns, two rows, headings
    assert to_colours(image, 16).shape == sample.restored.shape
