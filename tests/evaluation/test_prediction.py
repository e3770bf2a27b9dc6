"""Windows by their shapes: they agree with the counter of FLOPs, and predictions have the right order."""

from collections import Counter

import pytest
import torch

from tomadiff import Bound, ToMA, ToMeSD, kernels
from tomadiff.cost import GPUS, Hardware
from tomadiff.evaluation.runs.flops import WINDOW, Count, count, count_kinds
from tomadiff.evaluation.timing.architectures import build, inputs
from tomadiff.evaluation.timing.prediction import Window, window


def windows(method: ToMA, machine: Hardware, size: int, dtype: torch.dtype = torch.float32) -> tuple[Window, Window]:
    """Of SD3 with one block, unmerged and merged, as the machine would compute it."""
    model, given = build("sd3", depth=1, dtype=dtype), inputs("sd3", size, dtype=dtype)
    with kernels.assumed(machine.fuses):
        return window(model, given, None), window(model, given, method)


def speed_up(both: tuple[Window, Window], machine: Hardware) -> float:
    return both[0].seconds(machine) / both[1].seconds(machine)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_windows_count_the_operations_that_torch_counts(name: str) -> None:
    model, given = build(name, depth=1), inputs(name, 512)
    assert window(model, given, None).mean.flops == count(model, given)
    for method in (ToMA.tile(0.5, skip=0), ToMeSD(0.5, skip=0), Bound(0.5, skip=0)):
        counted = Count(count_kinds(model, given, method), Counter(method.schedule.dues(WINDOW))).flops
        assert window(model, given, method).mean.flops == pytest.approx(counted, rel=1e-9)


def test_a_window_has_its_kinds_of_step() -> None:
    model, given = build("sd3", depth=1), inputs("sd3", 256)
    found = window(model, given, ToMA.tile(0.5))
    assert {name: share for name, (share, _) in found.parts.items()} == {
        "selecting": 0.1,
        "plain": 0.8,
        "reweighing": 0.1,
    }
    launches = {name: each.launches for name, (_, each) in found.parts.items()}
    assert launches["plain"] < launches["reweighing"] < launches["selecting"]
    assert found.mean.launches == pytest.approx(sum(share * each.launches for share, each in found.parts.values()))


def test_guidance_passes_of_shapes_alone_count_as_samples() -> None:
    model = build("sd3", depth=1)
    one, two = (window(model, inputs("sd3", 256, batch=batch), ToMA.tile(0.5)).mean.flops for batch in (1, 2))
    assert two == pytest.approx(2 * one, rel=1e-3)


def test_predictions_follow_the_arithmetic_where_it_is_all_that_counts() -> None:
    slow = Hardware("arithmetic only", {torch.float32: 1e9}, bandwidth=1e18, launch=0.0)
    few, many = (windows(ToMA.tile(ratio), slow, 512) for ratio in (0.5, 0.75))
    assert many[1].mean.flops < few[1].mean.flops
    assert few[1].seconds(slow) == pytest.approx(few[1].mean.flops / 1e9, rel=1e-6)
    assert 1 < speed_up(few, slow) < speed_up(many, slow)


def test_launches_are_all_that_counts_for_tiny_images() -> None:
    machine = GPUS["H100"]
    eager = windows(ToMA.tile(0.5), machine, 64, torch.float16)
    assert eager[1].seconds(machine) == pytest.approx(eager[1].mean.launches * machine.launch, rel=0.2)
    assert speed_up(eager, machine) < 1


def test_plans_of_every_block_pay_on_gpus_that_have_our_kernels() -> None:
    """One launch for a plan, where plain torch takes more than a hundred."""
    old, new = (windows(ToMA(0.5, skip=0), GPUS[name], 1024, torch.float16) for name in ("V100", "H100"))
    assert new[1].mean.launches < old[1].mean.launches / 2
    assert speed_up(new, GPUS["H100"]) > 1
