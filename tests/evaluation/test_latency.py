"""Timing and counting: shares add up, counts are right, patches come off."""

from functools import partial
from typing import Any

import pytest
import torch

from tests import tiny
from tests.evaluation.synthetic_runs import thin_sd15
from tomadiff.evaluation.runs.failures import Failures
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.timing import latency
from tomadiff.evaluation.timing.architectures import build, inputs
from tomadiff.evaluation.timing.latency import Measurement, contenders, measure
from tomadiff.evaluation.timing.workloads import Step, WholeImage
from tomadiff.methods.registry import named
from tomadiff.patch import apply


def test_spread_and_median() -> None:
    one = Measurement("toma", "ToMA", 0.5, "step", (1.0, 2.0, 3.0, 4.0, 5.0), {}, 1.0, 0, 0, 0, 0)
    assert (one.least, one.median, one.spread) == (1, 3, pytest.approx(2 / 3))
    assert one.as_row()["seconds_median"] == 3


COUNTS = ("flops", "launches", "peak_bytes", "plan_bytes")


@pytest.mark.parametrize("fails_at", ["_counted", "_timed"])
def test_a_contender_that_fails_is_left_out_and_reported(fails_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    workload = Step(build("sd15", "cpu", depth=1), "sd15", inputs("sd15", 64, "cpu"))
    field, _ = contenders(["toma-paper"], [0.25, 0.5], workload)
    quick, failures = {"_counted": dict.fromkeys(COUNTS, 0), "_timed": {"plain": [1.0, 0.1]}}, Failures()

    def stands_in(name: str, workload: Any, contender: Variant) -> Any:
        if name == fails_at and contender.ratio == 0.25:
            raise torch.linalg.LinAlgError("did not converge")
        return quick[name]

    for name in quick:
        monkeypatch.setattr(latency, name, partial(stands_in, name))
    measured = measure(workload, field, rounds=2, failures=failures)
    assert [one.ratio for one in measured] == [0, 0.5]
    assert failures.lines == ["toma-paper 25% failed: did not converge"]
    with pytest.raises(torch.linalg.LinAlgError):
        measure(workload, field, rounds=1)


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = tiny.build("sdxl").pipe
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.slow
def test_images_are_measured_and_patches_come_off(pipe: Any) -> None:
    workload = WholeImage(pipe, "tiny", {"height": 64, "width": 64, "num_inference_steps": 3})
    field, refused = contenders(["toma"], [0.5], workload)
    ticks: list[int] = []
    base, merged = measure(workload, field, rounds=2, done=lambda: ticks.append(1))
    assert (refused, len(ticks)) == ([], 2 * 3)
    assert (base.method, base.speed_up, base.plan_bytes, len(base.seconds)) == (
        "full",
        1.0,
        0,
        2,
    )
    assert merged.flops < base.flops
    assert merged.launches > base.launches
    assert merged.plan_bytes > 0
    assert not any("_tomadiff_patch" in module.__dict__ for module in pipe.unet.modules())


def test_a_window_is_put_together_from_its_kinds_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    model = build("sd15", "cpu", depth=1)
    workload = Step(model, "sd15", inputs("sd15", 64, "cpu"))
    method, schedule = named("toma-paper", 0.5)
    with apply(model, method, schedule=schedule) as patch:
        parts = workload.parts(patch)
    assert [(part.name, part.share) for part in parts] == [
        ("selecting", 0.1),
        ("plain", 0.8),
        ("reweighing", 0.1),
    ]
    assert [part.share for part in workload.parts(None)] == [1.0]


def test_a_method_that_cannot_work_is_left_out_with_a_reason() -> None:
    flux = tiny.build("flux")
    workload = WholeImage(flux.pipe, "tiny", flux.settings)
    field, refused = contenders(["toma", "tomesd"], [0.25, 0.5], workload)
    kept = {variant.entry for variant in field}
    assert Variant() in field
    assert all(method in kept or any(line.startswith(method) for line in refused) for method in ("toma", "tomesd"))
