"""Progress and stopping, with real pipelines of both kinds of callback."""

from threading import Event

import pytest

from tests import tiny
from tomadiff.web.progress import Progress, Stopped, Visitors


@pytest.mark.parametrize("family", ["sd15", "pixart"])
def test_every_step_is_told(family: str) -> None:
    model, told = tiny.build(family), []
    progress = Progress(3, lambda *progress: told.append(progress))
    progress.begin("a fox")
    model.draw(num_inference_steps=3, **progress.arguments(model.pipe))
    assert told == [(done, 3, "a fox") for done in range(4)]


@pytest.mark.parametrize("family", ["sd15", "pixart"])
def test_an_image_that_nobody_waits_for_stops_between_two_steps(family: str) -> None:
    model, stop = tiny.build(family), Event()
    progress = Progress(50, lambda done, *_: stop.set() if done == 2 else None, stop)
    with pytest.raises(Stopped):
        model.draw(num_inference_steps=50, **progress.arguments(model.pipe))
    assert progress.done == 2


def test_only_the_visitor_who_left_is_dismissed() -> None:
    visitors = Visitors()
    with visitors.waiting("one") as one, visitors.waiting("two") as two, visitors.waiting("one") as also_one:
        visitors.dismiss("one")
        visitors.dismiss("nobody")
        assert (one.is_set(), two.is_set(), also_one.is_set()) == (True, False, True)
    with visitors.waiting("one") as again:
        assert not again.is_set()
