from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tomadiff.evaluation.inspect.method_figures import METHODS_SHOWN, destination_of_each, method_figure
from tomadiff.evaluation.report.figures import merge_sample
from tomadiff.evaluation.runs.synthetic_image import synthetic_image
from tomadiff.methods.registry import CATALOGUE, named

IMAGE = synthetic_image(128)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_generates_its_own_image(name: str) -> None:
    generated = method_figure(name, IMAGE, side=32)
    assert generated.width > 2 * generated.height
    assert len(generated.getcolors(1 << 20) or ()) > 100  # more than a blank page


def test_methods_that_move_tokens_differently_look_different() -> None:
    pages = [method_figure(name, IMAGE, side=16).crop((0, 100, 800, 480)).tobytes() for name in METHODS_SHOWN]
    alike = {("tomesd", "tofu"), ("tofu", "tomesd")}  # they match alike, and differ in what a cluster becomes
    for place, page in enumerate(pages):
        for other in range(place):
            assert page != pages[other] or (METHODS_SHOWN[place], METHODS_SHOWN[other]) in alike


@pytest.mark.parametrize("name", ["toma", "toma-stripe", "toma-whole", "tomesd", "tofu", "todo"])
def test_destinations_join_themselves_and_others_join_destinations(name: str) -> None:
    sample = merge_sample(IMAGE, named(name, 0.5)[0], side=16, repeats=1)
    goals, stays = destination_of_each(sample).ravel(), sample.plan.destinations[0].numpy()
    assert set(goals) <= set(stays)
    assert np.mean(goals[stays] == stays) > 0.95  # but for equal tokens, where the first one takes all


@pytest.mark.parametrize(("name", "region"), [("toma", (4, 4)), ("toma-stripe", (1, 16)), ("todo", (2, 2))])
def test_nobody_leaves_the_region(name: str, region: Sequence[int]) -> None:
    goals = destination_of_each(merge_sample(IMAGE, named(name, 0.5)[0], side=16, repeats=1))
    rows, columns = np.indices(goals.shape)
    assert np.array_equal(goals // 16 // region[0], rows // region[0])
    assert np.array_equal(goals % 16 // region[1], columns // region[1])
