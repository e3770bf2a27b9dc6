from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tomadiff import Clock, Schedule
from tomadiff.errors import SettingError
from tomadiff.steps.clock import StepInfo
from tomadiff.steps.schedule import Due


def actions(schedule: Schedule, steps: list[int], total: int | None = None) -> list[str]:
    """What a group does over ``steps``, keeping its own books."""
    selected = weighed = None
    done = []
    for step in steps:
        due = schedule.due(step, selected, weighed, total)
        if due is Due.SELECT:
            selected = weighed = step
        elif due is Due.REWEIGH:
            weighed = step
        done.append(due.value)
    return done


def test_the_papers_rhythm() -> None:
    done = actions(Schedule(), list(range(50)))
    assert [step for step, due in enumerate(done) if due == "select"] == [0, 10, 20, 30, 40]
    assert [step for step, due in enumerate(done) if due == "reweigh"] == [5, 15, 25, 35, 45]


def test_age_counts_when_a_cache_skips_steps() -> None:
    assert actions(Schedule(), [0, 1, 7, 12, 13, 18]) == ["select", "reuse", "reweigh", "select", "reuse", "reweigh"]


def test_windows_in_steps_and_shares() -> None:
    assert actions(Schedule(start=2), list(range(4))) == ["skip", "skip", "select", "reuse"]
    assert [Schedule(start=0.25).merges_at(step, total=4) for step in range(4)] == [False, True, True, True]
    with pytest.raises(SettingError, match=r"patch\.begin\(steps"):
        Schedule(start=0.2).merges_at(3)


def test_ratio_over_levels() -> None:
    schedule = Schedule(ratio_at_level={1: 0.1})
    assert [schedule.ratio(0.5, level) for level in (0, 1, 2)] == [0.5, 0.1, 0.5]
    assert schedule.varies
    assert hash(schedule) == hash(Schedule(ratio_at_level=((1, 0.1),)))


@pytest.mark.parametrize(
    "settings",
    [
        {"destinations_every": 0},
        {"weights_every": 2.5},
        {"start": -1},
        {"start": 1.5},
        {"start": True},
        {"ratio_at_level": {0: 1.0}},
        {"ratio_at_level": {-1: 0.5}},
        {"ratio_at_level": {0: "half"}},
    ],
)
def test_bad_schedules_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        Schedule(**settings)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ clock
def where(info: StepInfo) -> tuple[int, int, int]:
    return info.generation, info.step, info.pass_index


def test_clock_by_timestep() -> None:
    clock = Clock()
    seen = [where(clock.step_info(torch.tensor(t))) for t in (999.0, 500.0, 500.0, 1.0)]
    assert seen == [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 2, 0)]
    assert where(clock.step_info(999)) == (2, 0, 0), "a larger timestep is a new picture"


def test_clock_takes_the_largest_of_per_token_timesteps() -> None:
    clock = Clock()
    clock.step_info(torch.tensor([[0.0, 900.0], [0.0, 900.0]]))
    assert clock.step_info(torch.tensor([[0.0, 800.0]])).step == 1


def test_clock_by_scheduler() -> None:
    scheduler = SimpleNamespace(step_index=None, begin_index=None, timesteps=torch.tensor([9.0, 5.0, 1.0]))
    clock, seen = Clock(), []
    for index in (None, 1, 1, 2):
        scheduler.step_index = index
        seen.append(where(clock.step_info(torch.tensor(7.0), scheduler)))
    assert seen == [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 2, 0)]
    assert clock.step_info(None, scheduler).total == 3
    scheduler.timesteps, scheduler.step_index = torch.tensor([9.0, 1.0]), None
    assert clock.step_info(None, scheduler) == StepInfo(2, 0, 0, total=2)


def test_clock_begins_where_image_to_image_begins() -> None:
    scheduler = SimpleNamespace(step_index=None, begin_index=4, timesteps=torch.arange(8.0))
    assert Clock().step_info(None, scheduler).step == 4


def test_clock_with_a_scheduler_that_keeps_no_index() -> None:
    scheduler = SimpleNamespace(timesteps=torch.tensor([9.0, 5.0]))
    clock = Clock()
    assert where(clock.step_info(9.0, scheduler)) == (1, 0, 0)
    assert where(clock.step_info(5.0, scheduler)) == (1, 1, 0)
    scheduler.timesteps = torch.tensor([9.0, 5.0])
    assert where(clock.step_info(9.0, scheduler)) == (2, 0, 0)


def test_clock_takes_the_place_among_the_schedulers_timesteps() -> None:
    """A scheduler without an index of its own; image-to-image begins further on, and repeated times are steps."""
    scheduler = SimpleNamespace(timesteps=torch.tensor([9.0, 5.0, 5.0, 1.0]))
    clock = Clock()
    seen = [where(clock.step_info(time.expand(2), scheduler)) for time in scheduler.timesteps[1:]]
    assert seen == [(1, 1, 0), (1, 2, 0), (1, 3, 0)]
    info = clock.step_info(scheduler.timesteps[3][None], scheduler)
    assert info == StepInfo(1, 3, 1, total=4)
    assert info.times == (9.0, 5.0, 5.0, 1.0)
    assert where(clock.step_info(5.0, scheduler)) == (2, 1, 0), "a number is looked up"


def test_what_one_caller_states_is_not_for_another() -> None:
    clock = Clock()
    clock.begin(9)
    clock.state(3)
    scheduler = SimpleNamespace(step_index=None, begin_index=None, timesteps=torch.tensor([9.0, 1.0]))
    assert clock.step_info(9.0, scheduler, caller=1) == StepInfo(1, 0, 0, total=2)
    clock.begin(5)
    clock.state(3)
    assert clock.step_info(9.0) == StepInfo(2, 3, 0, total=5)
    clock.state(1, caller=1)
    assert clock.step_info(9.0, scheduler, caller=1) == StepInfo(3, 1, 0)


def test_a_scheduler_that_stands_still_is_not_believed() -> None:
    """A model that two pipelines share may be driven by the other one's scheduler."""
    idle = SimpleNamespace(step_index=None, begin_index=None, timesteps=torch.tensor([9.0, 5.0, 1.0]))
    clock = Clock()
    steps = [clock.step_info(float(timestep), idle).step for timestep in range(20, 0, -1)]
    assert steps[0] == 0
    assert steps[-1] > 10
    idle.timesteps = torch.tensor([9.0, 5.0])
    assert clock.step_info(9.0, idle) == StepInfo(clock.step_info(9.0, idle).generation, 0, 0, total=2)


def test_many_views_of_one_step_stay_one_step() -> None:
    scheduler = SimpleNamespace(step_index=1, begin_index=None, timesteps=torch.tensor([9.0, 5.0, 1.0]))
    clock = Clock()
    assert {clock.step_info(5.0, scheduler).step for _ in range(12)} <= {1, 2}


@pytest.mark.parametrize("state", [{"step_index": 3}, {"step_index": None, "num_inference_steps": None}])
def test_a_scheduler_that_finished_or_never_began_does_not_count(state: dict[str, int | None]) -> None:
    """It belongs to a pipeline that is not at work; from the first call on the timesteps themselves tell the step."""
    idle = SimpleNamespace(begin_index=None, timesteps=torch.tensor([9.0, 5.0, 1.0]), **state)
    clock = Clock()
    assert [where(clock.step_info(timestep, idle)) for timestep in (9.0, 7.0, 7.0)] == [(1, 0, 0), (1, 1, 0), (1, 1, 1)]


def test_one_step_pictures_need_a_beginning() -> None:
    clock = Clock()
    first = clock.step_info(999.0)
    assert where(clock.step_info(999.0)) == (1, 0, 1), "taken for a second pass"
    clock.begin()
    assert where(clock.step_info(999.0)) == (first.generation + 1, 0, 0)


def test_explicit_steps_outrank_everything() -> None:
    clock = Clock()
    clock.begin(steps=4)
    scheduler = SimpleNamespace(step_index=3, begin_index=None, timesteps=torch.arange(5.0))
    seen = []
    for step in (0, 0, 1, 2):
        clock.state(step)
        seen.append(where(clock.step_info(12.0, scheduler)))
    assert seen == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 2, 0)]
    assert clock.step_info().total == 4
    with pytest.raises(SettingError):
        clock.begin(steps=0)
    with pytest.raises(SettingError):
        clock.state(-1)


def test_without_any_source_every_call_is_a_step() -> None:
    clock = Clock()
    assert [clock.step_info().step for _ in range(3)] == [0, 1, 2]


def test_what_is_left_open_is_the_methods_to_say() -> None:
    own = Schedule(1, 1, start=0.05)
    assert Schedule(start=4).completed_by(own) == Schedule(1, 1, start=4)
    assert Schedule(destinations_every=3).completed_by(own) == Schedule(3, 1)
    assert Schedule(3, 2).completed_by(own) == Schedule(3, 2)
    assert Schedule().completed_by(Schedule(10, 5)).intervals == Schedule().intervals == (10, 5)
