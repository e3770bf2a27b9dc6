"""Windows by their shapes: they agree with the counter of FLOPs, and predictions have the right order."""

import pytest
import torch

from tomadiff import Bound, ToMA, ToMeSD
from tomadiff.cost import GPUS, Hardware
from tomadiff.evaluation.runs.flops import count, count_window
from tomadiff.evaluation.timing.architectures import build, inputs
from tomadiff.evaluation.timing.prediction import predict, window


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_windows_count_the_operations_that_torch_counts(name: str) -> None:
    model, given = build(name, depth=1), inputs(name, 512)
    assert window(model, given, None).mean.flops == count(model, given)
    for method in (ToMA.tile(0.5, skip=0), ToMeSD(0.5, skip=0), Bound(0.5, skip=0)):
        counted = count_window(model, given, method).flops
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
    few, many = (predict("sd3", ToMA.tile(ratio), slow, 512, depth=1) for ratio in (0.5, 0.75))
    assert many.flops < few.flops
    assert few.seconds == pytest.approx(few.flops / 1e9, rel=1e-6)
    assert 1 < few.speed_up < many.speed_up


def test_launches_are_all_that_counts_for_tiny_images() -> None:
    eager = predict("sd3", ToMA.tile(0.5), GPUS["H100"], 64, depth=1, dtype=torch.float16)
    assert eager.seconds == pytest.approx(eager.launches * GPUS["H100"].launch, rel=0.2)
    assert eager.speed_up < 1


def test_plans_of_every_block_pay_on_gpus_that_have_our_kernels() -> None:
    """One launch for a plan, where plain torch takes more than a hundred."""
    given = {"size": 1024, "depth": 1, "dtype": torch.float16}
    old, new = (predict("sd3", ToMA(0.5, skip=0), GPUS[name], **given) for name in ("V100", "H100"))
    assert new.launches < old.launches / 2
    assert new.speed_up > 1
