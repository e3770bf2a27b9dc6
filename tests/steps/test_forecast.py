"""The forecast of denoising steps on tensors alone: settings, the rule, and what starts it over."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tomadiff.errors import SettingError
from tomadiff.steps.forecast import Forecast, Forecaster, bounds
from tomadiff.steps.times import evened

Output = Callable[[int], object]


def run(forecaster: Forecaster, output: Output, steps: int = 20, key: object = 0, form: object = None) -> list[object]:
    """All outputs of a run of one pass."""
    forecaster.begin(steps)
    return [forecaster.call(step, key, form, lambda step=step: output(step)) for step in range(steps)]


def line(step: int) -> Tensor:
    ahead = torch.arange(12.0).reshape(2, 6) + 1
    return 5 + ahead * (1 + 0.1 * step)


def noise(step: int) -> Tensor:
    return torch.randn(2, 6, generator=torch.Generator().manual_seed(step))


def wave(step: int) -> Tensor:
    return torch.stack([torch.sin(0.1 * step + torch.arange(6.0) + row) + 2 for row in range(2)])


# ---------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize("given", [-0.1, 1.5, "much", True, float("nan"), [0.1]])
def test_an_impossible_tolerance_is_refused(given: object) -> None:
    with pytest.raises(SettingError):
        Forecast.of(given)


@pytest.mark.parametrize("given", [{"every": 0}, {"every": 2, "steps": (0, 1)}, {"steps": (-1,)}, {"start": 1.2}])
def test_impossible_patterns_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        Forecast(**given)


def test_what_forecast_means() -> None:
    assert Forecast.of(None) is None
    assert Forecast.of(0.1) == Forecast(0.1)
    assert Forecast.of(Forecast(every=2)) == Forecast(every=2)
    assert not Forecast(0).skips
    assert not Forecast(every=1).skips


def test_every_counts_back_from_the_last_step_but_in_short_runs() -> None:
    pattern = Forecast(every=2, start=0.2)
    assert [step for step in range(20) if pattern.computes(step, 20)] == [0, 1, 2, 3, *range(5, 20, 2)]
    assert [step for step in range(8) if pattern.computes(step, 8)] == [0, 1, 2, 4, 6]
    assert [step for step in range(4) if Forecast(every=3).computes(step, 4)] == [0, 1]
    assert [step for step in range(10, 20) if pattern.computes(step, 20, first=10)] == [10, 11, 12, 14, 16, 18]


def test_few_steps_are_bound_otherwise_than_many() -> None:
    assert bounds(8) == (4, 1)
    assert bounds(20) == (4, 3)
    assert bounds(50) == (5, 8)
    assert bounds(None) == (4, 2)


# ---------------------------------------------------------------------------------------------- the rule
def test_a_line_is_forecast_and_exact() -> None:
    forecaster = Forecaster(Forecast(0.05))
    outputs = run(forecaster, line)
    assert forecaster.pattern.computed == (0, 1, 2, 3, 5, 8, 12, 16, 18, 19)
    for step, output in enumerate(outputs):
        torch.testing.assert_close(output, line(step), rtol=1e-5, atol=1e-5)


def test_noise_is_computed() -> None:
    forecaster = Forecaster(Forecast(0.2))
    run(forecaster, noise)
    assert forecaster.pattern.forecast == ()


def test_a_higher_tolerance_forecasts_more_and_the_estimate_holds() -> None:
    counts = []
    for tolerance in (0.001, 0.01, 0.1):
        forecaster = Forecaster(Forecast(tolerance))
        outputs = run(forecaster, wave)
        counts.append(len(forecaster.pattern.forecast))
        for step in forecaster.pattern.forecast:
            assert (outputs[step] - wave(step)).norm() / wave(step).norm() < 2 * tolerance
    assert counts[0] < counts[1] < counts[2]


def test_the_worst_sample_and_the_worst_pass_decide() -> None:
    mixed = Forecaster(Forecast(0.2))
    run(mixed, lambda step: torch.cat([line(step), noise(step)]))
    assert mixed.pattern.forecast == ()
    passes = Forecaster(Forecast(0.2))
    passes.begin(20)
    for step in range(20):
        passes.call(step, "cond", None, lambda step=step: line(step))
        passes.call(step, "uncond", None, lambda step=step: noise(step))
    assert passes.pattern.forecast == ()


def test_each_pass_is_forecast_from_its_own_outputs() -> None:
    forecaster = Forecaster(Forecast(every=2, start=3))
    forecaster.begin(12)
    for step in range(12):
        for key, sign in (("cond", 1), ("uncond", -1)):
            output = forecaster.call(step, key, None, lambda step=step, sign=sign: sign * line(step))
            torch.testing.assert_close(output, sign * line(step), rtol=1e-5, atol=1e-5)
    assert forecaster.pattern.forecast


def test_a_trend_that_ends_is_not_followed() -> None:
    forecaster = Forecaster(Forecast(steps=(0, 1, 2, 3)))
    outputs = run(forecaster, lambda step: line(min(step, 2)), steps=6)  # from step 2 on, nothing changes
    assert torch.equal(outputs[5], line(2))


def test_with_a_fixed_pattern_a_sample_alone_is_as_in_a_batch() -> None:
    together = run(Forecaster(Forecast(every=3)), wave)
    for row in range(2):
        alone = run(Forecaster(Forecast(every=3)), lambda step, row=row: wave(step)[row : row + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            torch.testing.assert_close(one, all_of_them[row : row + 1], rtol=1e-6, atol=1e-6)


def test_what_is_not_a_number_is_computed() -> None:
    forecaster = Forecaster(Forecast(1.0))
    run(forecaster, lambda step: torch.full((1, 4), float("nan")))
    assert forecaster.pattern.forecast == ()


@pytest.mark.parametrize("top", [1, 1000])
def test_log_odds_of_the_noise_level_are_the_measure(top: int) -> None:
    """What moves evenly along them is forecast exactly, whether the scheduler counts to 1 or to 1000."""
    times = [top * (1 - step / 20) ** 2 for step in range(20)]
    values = evened(times)
    assert values == pytest.approx(evened([time / top for time in times]))
    forecaster = Forecaster(Forecast(0.05))
    forecaster.begin(20, times)
    for step, value in enumerate(values):
        output = forecaster.call(step, 0, None, lambda value=value: torch.tensor([[value, 1.0]]))
        torch.testing.assert_close(output, torch.tensor([[value, 1.0]]), rtol=1e-4, atol=1e-4)
    assert forecaster.pattern.forecast


@pytest.mark.parametrize("times", [[3.0, 0.5, -2.0], [5000.0, 100.0]])
def test_times_that_are_no_noise_levels_stay_as_they_are(times: list[float]) -> None:
    assert evened(times) == tuple(times)
    assert all(math.isfinite(time) for time in evened([1000.0, 500.0, 0.0]))


def test_repeated_times_do_not_divide_by_zero() -> None:
    times = [1.0, *(0.9, 0.9), *(0.8, 0.8), *(0.7, 0.7), *(0.6, 0.6), *(0.5, 0.5)]
    forecaster = Forecaster(Forecast(every=2, start=0))
    forecaster.begin(len(times), times)
    outputs = [forecaster.call(step, 0, None, lambda step=step: wave(step)) for step in range(len(times))]
    assert all(torch.isfinite(output).all() for output in outputs)
    assert forecaster.pattern.forecast


def test_arithmetic_is_in_float32() -> None:
    forecaster = Forecaster(Forecast(steps=range(4)))
    rows = [(1000 + line(step)).bfloat16() for step in range(4)]
    output = run(forecaster, lambda step: rows[step], steps=5)[4]
    assert isinstance(output, Tensor)
    assert output.dtype == torch.bfloat16
    last, before = rows[3].float(), rows[2].float()
    trend = rows[2].float() - rows[1].float()
    share = (((last - before) * trend).sum(1) / trend.square().sum(1).clamp_min(1e-20)).clamp(0, 1.5)
    assert torch.equal(output, (last + share[:, None] * (last - before)).bfloat16())


def test_two_images_in_a_row_are_equal_and_a_pattern_replays() -> None:
    forecaster = Forecaster(Forecast(0.05))
    first, second = run(forecaster, wave), run(forecaster, wave)
    again = run(Forecaster(Forecast(steps=forecaster.pattern.computed)), wave)
    for one, two, three in zip(first, second, again, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


# ---------------------------------------------------------------------------------------------- start over
def test_a_pass_that_ends_starts_over() -> None:
    forecaster = Forecaster(Forecast(0.05))
    forecaster.begin(20)
    for step in range(20):
        for key in ("cond", "uncond") if step < 10 else ("cond",):
            forecaster.call(step, key, None, lambda step=step: line(step))
    computed = forecaster.pattern.computed
    assert {11, 12, 13, 14} <= set(computed)
    assert len(computed) < 20


def test_a_pass_that_comes_later_is_computed() -> None:
    forecaster = Forecaster(Forecast(every=2, start=1))
    forecaster.begin(12)
    calls = []
    for step in range(12):
        for key in ("cond",) if step < 6 else ("cond", "uncond"):
            forecaster.call(step, key, None, lambda key=key, step=step: calls.append((key, step)) or line(step))
    assert ("uncond", 6) in calls
    assert ("cond", 7) in calls


def test_other_arguments_start_over() -> None:
    forecaster = Forecaster(Forecast(0.05))
    forecaster.begin(20)
    for step in range(20):
        forecaster.call(step, 0, "a" if step < 10 else "b", lambda step=step: line(step)[: 2 if step < 10 else 1])
    assert {10, 11, 12, 13} <= set(forecaster.pattern.computed)


def test_an_output_of_another_shape_starts_over() -> None:
    forecaster = Forecaster(Forecast(every=3, start=1))
    outputs = run(forecaster, lambda step: line(step)[: 2 if step < 8 else 1])
    assert {tuple(output.shape) for output in outputs[9:]} <= {(1, 6), (2, 6)}
    assert outputs[-1].shape == (1, 6)


# ---------------------------------------------------------------------------------------------- outputs and memory
def test_outputs_may_be_trees() -> None:
    forecaster = Forecaster(Forecast(every=2, start=0.3))
    outputs = run(
        forecaster, lambda step: ([line(step)[0], line(step)[1][:3]], {"mask": torch.tensor([1]), "none": None})
    )
    for step, (parts, others) in enumerate(outputs):
        torch.testing.assert_close(parts[0], line(step)[0], rtol=1e-5, atol=1e-5)
        assert parts[1].shape == (3,)
        assert others["none"] is None
        assert others["mask"].dtype == torch.int64


def test_what_others_write_into_an_output_changes_no_forecast() -> None:
    plain, written = Forecaster(Forecast(every=2)), Forecaster(Forecast(every=2))
    plain.begin(10), written.begin(10)
    for step in range(10):
        wanted = plain.call(step, 0, None, lambda step=step: wave(step))
        given = written.call(step, 0, None, lambda step=step: wave(step))
        assert torch.equal(wanted, given)
        given.zero_()


def test_training_is_left_alone() -> None:
    forecaster = Forecaster(Forecast(every=2))
    weight = torch.ones(6, requires_grad=True)
    run(forecaster, lambda step: line(step) * weight)
    assert forecaster.pattern.forecast == ()
    assert not forecaster._passes


@pytest.mark.parametrize("settings", [Forecast(0.05), Forecast(steps=range(4))], ids=["computed", "forecast"])
def test_memory_is_given_back_after_the_last_step(settings: Forecast) -> None:
    forecaster = Forecaster(settings)
    forecaster.begin(20)
    for step in range(20):
        forecaster.call(step, 0, None, lambda step=step: line(step))
        held = [kept for one in forecaster._passes.values() for kept in one._kept]
        assert len(held) <= (0 if step == 19 else 2)


class CountReads(TorchDispatchMode):
    """Counts what a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [Forecast(0.02), Forecast(every=2)])
def test_a_device_is_waited_for_once_after_a_computed_step_at_most(settings: Forecast) -> None:
    forecaster = Forecaster(settings)
    with CountReads() as reads:
        run(forecaster, lambda step: (wave(step), -wave(step)))
    computed = len(forecaster.pattern.computed)
    assert forecaster.pattern.forecast
    assert reads.count <= (0 if settings.is_fixed else computed)


# ---------------------------------------------------------------------------------------------- processes
def _one_rank(rank: int, meeting: str, folder: str) -> None:
    """Rank 1 sees other outputs, so that it would decide otherwise."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    forecaster = Forecaster(Forecast(0.05))
    forecaster.group = torch.distributed.group.WORLD
    run(forecaster, noise if rank else wave)
    torch.save(list(forecaster.pattern.computed), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_of_several_processes_the_first_decides(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_one_rank, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second
    assert len(first) < 20
