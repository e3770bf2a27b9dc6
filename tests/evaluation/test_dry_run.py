"""FLOPs of an image: as many as generating it really takes, counted without generating it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diffusers import HeunDiscreteScheduler

from tests.tiny import Tiny, build
from tomadiff import Forecast, Schedule, ToMA
from tomadiff.cost import flop_counter
from tomadiff.evaluation.runs.dry_run import dry_run, meter
from tomadiff.evaluation.runs.generate import generate_batch, generate_image
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.variants import Variant

PAIR = Prompt("a fox"), 0


def made(family: str, steps: int = 3, **settings: Any) -> tuple[Tiny, dict[str, Any]]:
    tiny = build(family)
    tiny.pipe.set_progress_bar_config(disable=True)
    return tiny, {**tiny.settings, "num_inference_steps": steps, **settings}


def generated_flops(tiny: Tiny, call: dict[str, Any], variant: Variant) -> float:
    """Of all calls of the denoiser while an image is really generated."""
    forward, counted = tiny.model.forward, []

    def counting(*given: Any, **named: Any) -> Any:
        with flop_counter() as counter:
            result = forward(*given, **named)
        counted.append(counter.get_total_flops())
        return result

    tiny.model.forward = counting
    with variant.on(tiny.pipe):
        generate_batch(tiny.pipe, [PAIR[0]], [PAIR[1]], call)
    del tiny.model.forward
    return sum(counted)


@pytest.mark.parametrize("family", ["sdxl", "flux", "sd3", "pixart"])
@pytest.mark.parametrize(
    "variant", [Variant(), Variant.named("toma", 0.5), Variant.named("tomesd", 0.5), Variant.named("toma-once", 0.5)]
)
def test_a_count_is_what_generating_takes(family: str, variant: Variant) -> None:
    tiny, call = made(family, steps=6 if variant.method == "toma" else 2)  # six: one selects, one reweighs, four reuse
    assert meter(tiny.pipe, *PAIR, call)(variant) == generated_flops(tiny, call, variant)


def test_ratios_of_levels_count() -> None:
    tiny, call = made("sdxl")
    candidate = Variant("varying", ToMA.paper(0.5), Schedule(2, 1, start=1, ratio_at_level={1: 0.75}))
    assert dry_run(tiny.pipe, *PAIR, call).flops(candidate) == generated_flops(tiny, call, candidate)


def test_steps_of_a_fixed_forecast_do_not_count() -> None:
    tiny, call = made("sdxl", steps=6)
    counted = dry_run(tiny.pipe, *PAIR, call)
    merged = Variant("merged", ToMA(0.5), Schedule(1, 1))
    forecast = replace(merged, forecast=Forecast(every=2, start=1))  # computes 0, 1, 3, 5
    assert counted.flops(forecast) == counted.flops(merged) * 4 / 6


def test_every_call_counts_whatever_the_solver() -> None:
    tiny, call = made("sd15")
    tiny.pipe.scheduler = HeunDiscreteScheduler.from_config(tiny.pipe.scheduler.config)
    counted = dry_run(tiny.pipe, *PAIR, call)
    assert len(counted.calls) == 2 * 3 - 1
    assert counted.flops(Variant()) == generated_flops(tiny, call, Variant())


def test_a_rehearsal_computes_each_shape_once_and_leaves_no_trace() -> None:
    tiny, call = made("sdxl", steps=5)
    before = np.asarray(generate_image(tiny.pipe, "a fox", 0, call))
    computed: list[int] = []
    handle = tiny.model.conv_in.register_forward_pre_hook(lambda *_: computed.append(1))
    counted = dry_run(tiny.pipe, *PAIR, call)
    handle.remove()
    assert (len(computed), len(counted.calls), len(counted.inputs)) == (1, 5, 1)
    counted.flops(Variant.named("toma", 0.5))
    assert "forward" not in tiny.model.__dict__
    assert np.array_equal(np.asarray(generate_image(tiny.pipe, "a fox", 0, call)), before)


def test_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, call = made("sd15")
    flops = meter(tiny.pipe, *PAIR, call)
    first = flops(Variant.named("toma", 0.5))
    monkeypatch.setattr(tiny.model, "forward", lambda *_, **__: pytest.fail("called again"))
    assert flops(Variant.named("toma", 0.5)) == first
