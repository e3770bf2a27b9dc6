"""Budgets: a picture costs what was asked for, as counted on real pictures; and which settings are taken for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff
from tests import tiny
from tomadiff import Schedule, ToDo, ToMA, ToMeSD, embedded
from tomadiff.cost import Hardware, flop_counter, policy
from tomadiff.cost import guard as guarding
from tomadiff.cost.budget import POLICY, Budget, Choice, RatioChoice, Shares, choices_of, choose, ratios_of
from tomadiff.errors import SettingError
from tomadiff.presets import Preset
from tomadiff.steps.schedule import Due

EVERY_STEP = Schedule(destinations_every=1, weights_every=1)


# ---------------------------------------------------------------------------------------------- choosing
def shares(ratio_choice: RatioChoice) -> Shares:
    """Merging takes off four fifths of what it removes, half of that at level 0, and planning costs a little."""
    call = 1 - 0.4 * ratio_choice.ratio - 0.4 * ratio_choice.finest
    return {Due.SKIP: 1.0, Due.REUSE: call, Due.REWEIGH: call + 0.01, Due.SELECT: call + 0.02}


def cost(choice: Choice, schedule: Schedule, steps: int, **changes: Any) -> float:
    other = replace(choice, **changes)
    due = replace(schedule, start=other.start).dues(steps)
    return sum(shares(other.ratio_choice)[one] for one in due) / steps


def even(ratio: float) -> RatioChoice:
    return RatioChoice(ratio, ratio)


@pytest.mark.parametrize("steps", [1, 4, 8, 20, 50])
@pytest.mark.parametrize("target", [0.95, 0.8, 0.6, 0.5, 0.42, 0.3])
def test_the_smallest_ratio_that_meets_the_budget_is_taken(steps: int, target: float) -> None:
    schedule = Schedule(5, 2)
    choice = choose(Budget(flops=target), shares, schedule, steps)
    assert choice.share == pytest.approx(cost(choice, schedule, steps))
    assert choice.share <= target
    assert cost(choice, schedule, steps, ratio_choice=even(choice.ratio - 1 / POLICY.notches)) > target
    early = round(POLICY.unmerged * steps)
    assert choice.start == early or cost(choice, schedule, steps, ratio_choice=even(POLICY.most), start=early) > target


def test_a_speedup_is_a_share_of_the_time() -> None:
    fast, few = choose(Budget(speedup=1.6), shares, EVERY_STEP, 8), choose(Budget(flops=1 / 1.6), shares, EVERY_STEP, 8)
    assert (fast.ratio, fast.start, fast.share) == (few.ratio, few.start, few.share)
    assert str(fast).startswith(f"speedup=1.6: ratio {fast.ratio:g} from step {fast.start} of 8; expected: 1.")
    assert str(fast).endswith(" times as fast")


def test_of_ratios_that_come_to_the_same_the_round_one_is_taken() -> None:
    def in_sixteenths(ratio_choice: RatioChoice) -> Shares:
        return shares(RatioChoice(round(16 * ratio_choice.ratio) / 16, round(16 * ratio_choice.finest) / 16))

    assert choose(Budget(flops=0.65), in_sixteenths, EVERY_STEP, None).ratio == 0.5  # 0.46875 would do as well
    between = choose(
        Budget(flops=0.65), in_sixteenths, EVERY_STEP, None, ratio_choices=choices_of(POLICY.ratios, levels=2)
    )
    assert between.ratio_choice == RatioChoice(0.5, 0.4375)
    assert "ratio 0.5 (0.4375 at level 0)" in str(between)


def test_between_two_ratios_coarse_levels_have_the_larger_one() -> None:
    assert choices_of((0.25, 0.5), levels=2) == [even(0.25), RatioChoice(0.5, 0.25), even(0.5)]
    assert choices_of((0.25, 0.5)) == [even(0.25), even(0.5)]
    one, two = (choose(Budget(flops=0.7), shares, EVERY_STEP, 8, 0, choices_of((0.25, 0.5), many)) for many in (1, 2))
    assert (one.ratio_choice, two.ratio_choice) == (even(0.5), even(0.5))
    two = choose(Budget(flops=0.73), shares, EVERY_STEP, 8, 0, choices_of((0.25, 0.5), 2))
    assert two.ratio_choice == RatioChoice(0.5, 0.25)
    assert two.ratio_choice.on(EVERY_STEP).ratio_at_level == ((0, 0.25),)
    assert one.ratio_choice.on(EVERY_STEP) is EVERY_STEP


def test_without_a_number_of_steps_the_ratio_alone_is_chosen() -> None:
    choice = choose(Budget(flops=0.8), shares, EVERY_STEP, None)
    assert choice.start == 0
    assert choice.share == pytest.approx(1 - 0.8 * choice.ratio + 0.02)
    assert "the number of steps is not known" in str(choice)


def test_a_run_that_begins_further_on_is_cut_where_it_begins() -> None:
    late, whole = (choose(Budget(flops=0.7), shares, EVERY_STEP, steps, first) for steps, first in ((20, 12), (8, 0)))
    assert (late.start - 12, late.ratio, late.share) == (whole.start, whole.ratio, whole.share)


def test_what_cannot_be_reached_says_what_can() -> None:
    with pytest.raises(SettingError, match=r"flops=0.2 is out of reach: the least .* is 27.0% of the FLOPs"):
        choose(Budget(flops=0.2), shares, EVERY_STEP, 4)
    with pytest.raises(SettingError, match=r"speedup=9 is out of reach: the most .* is 3.70 times as fast"):
        choose(Budget(speedup=9), shares, EVERY_STEP, 4)
    with pytest.raises(SettingError, match="merging saves nothing here"):
        choose(Budget(flops=0.9), lambda _: dict.fromkeys(Due, 1.0), EVERY_STEP, 4)


def test_only_ratios_that_a_method_takes_are_looked_at() -> None:
    assert max(ratios_of(ToMeSD(0.5))) == 0.75
    assert max(ratios_of(ToMA())) == POLICY.most
    assert ratios_of(ToDo()) == (0.75,)


# ---------------------------------------------------------------------------------------------- asking
@pytest.mark.parametrize("given", [{"flops": 0}, {"flops": 1}, {"flops": 60}, {"flops": True}, {"flops": "0.6"}])
def test_flops_is_a_share(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"above 0 and below 1, such as 0\.6"):
        Budget(**given)


@pytest.mark.parametrize("given", [{"speedup": 1}, {"speedup": 0.5}, {"speedup": True}, {"speedup": float("nan")}])
def test_speedup_is_above_one(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"above 1, such as 1\.4"):
        Budget(**given)


@pytest.mark.parametrize(
    ("args", "settings", "message"),
    [
        ((), {"flops": 0.6, "speedup": 1.4}, "Give one budget"),
        ((0.5,), {"flops": 0.6}, "Both flops=0.6 and the ratio 0.5"),
        ((), {"ratio": 0.5, "speedup": 1.4}, "Both speedup=1.4 and the ratio 0.5"),
        ((), {"flops": 0.6, "schedule": Schedule(start=4)}, "leave out schedule.start=4"),
        ((ToDo(),), {"flops": 0.6}, "ToDo has a ratio of its own"),
    ],
)
def test_settings_that_a_budget_would_contradict_are_refused(args: Any, settings: Any, message: str) -> None:
    unet = tiny.model("sd15")
    with pytest.raises(SettingError, match=message):
        tomadiff.apply(unet, *args, **settings)
    assert not any("tomadiff" in name for name in unet.__dict__)


def test_a_preset_gives_all_but_ratio_and_start() -> None:
    preset = Preset(ToMA(0.25, scope="block"), Schedule(2, 2, start=3, ratio_at_level={1: 0.25}))
    with tomadiff.apply(tiny.model("sd15"), preset=preset, flops=0.8) as patch:
        assert patch.method == preset.method
        assert patch.schedule == replace(preset.schedule, start=0)
        assert "flops=0.8: settings are chosen at the first call" in patch.summary()


# ---------------------------------------------------------------------------------------------- whole pictures
def counted(drawing: Any, model: Any) -> float:
    """Operations of the denoiser while ``drawing()`` runs, planning included."""
    counter, total = flop_counter(), 0.0

    def after(*_: Any) -> None:
        nonlocal total
        counter.__exit__(None, None, None)
        total += counter.get_total_flops()

    def before(*_: Any) -> None:
        counter.__enter__()

    hooks = model.register_forward_pre_hook(before, prepend=True), model.register_forward_hook(after)
    drawing()
    for hook in hooks:
        hook.remove()
    return total


def spent(pipe: Any, model: Any, drawing: Any, **settings: Any) -> tuple[float, Choice]:
    """The share of operations that a picture takes within a budget; the first one is for choosing."""
    full = counted(drawing, model)
    with tomadiff.apply(pipe, **settings) as patch:
        drawing()
        share = counted(drawing, model) / full
        choice = next(iter(patch.choices.values()))
        assert choice is not None
        assert str(choice) in patch.summary()
        return share, choice


TARGETS = {"sdxl": 0.85, "flux": 0.6, "sd3": 0.6, "pixart": 0.6}  # how far merging gets depends on what else there is
NOTCH = 1 / 12  # regions of 4×4 keep whole tokens: one more or less changes a merged step and its plan by less


@pytest.mark.parametrize(
    "name", [name if name == "pixart" else pytest.param(name, marks=pytest.mark.slow) for name in TARGETS]
)
def test_pictures_cost_what_was_asked_for(name: str) -> None:
    drawn = tiny.build(name)
    share, choice = spent(drawn.pipe, drawn.model, drawn.draw, flops=TARGETS[name])
    assert share == pytest.approx(choice.share, rel=1e-9)  # nothing is estimated
    assert TARGETS[name] - NOTCH < share <= TARGETS[name]


@pytest.mark.slow
def test_least_squares_plans_of_every_block_and_step_are_part_of_the_bill() -> None:
    drawn = tiny.build("flux")
    fresh = ToMA(scope="block", unmerge="least-squares")
    share, choice = spent(drawn.pipe, drawn.model, drawn.draw, method=fresh, schedule=EVERY_STEP, flops=0.7)
    assert share == pytest.approx(choice.share, rel=1e-9)
    assert 0.7 - NOTCH < share <= 0.7


@pytest.mark.slow
@pytest.mark.skipif("emoji-sdxl" not in embedded.available(), reason="the weights of emoji-sdxl are not installed")
def test_the_trained_pipeline_keeps_a_budget_too() -> None:
    pipe = embedded.load("emoji-sdxl")
    pipe.set_progress_bar_config(disable=True)
    call = {**embedded.settings("emoji-sdxl"), "num_inference_steps": 3, "output_type": "latent"}
    share, choice = spent(pipe, pipe.unet, lambda: pipe("a fox", **call), flops=0.8)
    assert share == pytest.approx(choice.share, rel=1e-9)
    assert 0.8 - NOTCH < share <= 0.8


# ---------------------------------------------------------------------------------------------- bare models
def inputs(side: int = 16, timestep: int = 500) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(0)
    return {
        "sample": torch.randn(1, 4, side, side, generator=noise),
        "timestep": timestep,
        "encoder_hidden_states": torch.randn(1, 5, 32, generator=noise),
    }


def run(model: Any, **more: Any) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(**inputs(**more)).sample
    return result


@pytest.mark.slow
def test_a_bare_model_merges_at_every_step_until_it_is_told_how_many_there_are() -> None:
    unet = tiny.model("sd15")
    before = run(unet)
    with tomadiff.apply(unet, flops=0.8) as patch:
        state = torch.get_rng_state()
        run(unet)
        assert torch.equal(torch.get_rng_state(), state)  # the twin takes no random numbers from the sampler
        assert "at every step (the number of steps is not known" in patch.summary()
        assert patch._models[0].schedule.start == 0
        patch.begin(steps=20)
        run(unet)
        assert "of 20; expected: " in patch.summary()
        assert patch._models[0].schedule.start > 0
        assert patch.method == ToMA()  # as it was asked for
    assert torch.equal(run(unet), before)


@pytest.mark.slow
def test_each_size_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    twins: list[int] = []
    original = policy.meta_copy_of

    def counting(*args: Any) -> Any:
        twins.append(1)
        return original(*args)

    monkeypatch.setattr(policy, "meta_copy_of", counting)
    unet = tiny.model("sd15")
    with tomadiff.apply(unet, flops=0.85) as patch:
        for side in (16, 16, 24, 16):
            patch.begin(steps=4)
            run(unet, side=side)
        assert len(twins) == 2


@pytest.mark.slow
def test_budgets_can_be_set_and_ended() -> None:
    unet = tiny.model("sd15")
    with tomadiff.apply(unet, 0.25) as patch:
        patch.set(flops=0.8)
        run(unet)
        chosen = patch._models[0].method.ratio
        assert "flops=0.8: ratio" in patch.summary()
        assert chosen != 0.25
        patch.set(levels=None)
        assert patch.budget == Budget(flops=0.8)
        patch.set(ratio=0.5)
        assert patch.budget is None
        assert patch.schedule == ToMA().schedule, "merging begins where it did before there was a budget"
        assert "budget" not in patch.summary()
        with pytest.raises(SettingError, match="Both flops"):
            patch.set(ratio=0.5, flops=0.5)


def test_a_model_that_cannot_be_built_anew_says_so() -> None:
    unet = tiny.model("sd15")
    unet.register_to_config(addition_embed_type="of my own")
    with (
        tomadiff.apply(unet, flops=0.8),
        pytest.raises(SettingError, match=r"flops=0.8 cannot be met: .* Give ratio=… instead"),
    ):
        run(unet)


# ---------------------------------------------------------------------------------------------- time
def machine(launch: float = 0.0) -> Hardware:
    """A billion operations per second; bytes and the small products of merging are free."""
    return Hardware("made up", {torch.float32: 1e9}, 1e15, launch, {"batched": 1e6})


@pytest.mark.slow
def test_a_speedup_is_predicted_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time is operations, both budgets choose alike but for products that cost no time here."""
    monkeypatch.setattr(Hardware, "of", lambda *_: machine())
    unet = tiny.model("sd15")
    chosen = []
    for budget in ({"flops": 0.8}, {"speedup": 1.25}):
        with tomadiff.apply(unet, **budget) as patch:
            run(unet)
            chosen.append(next(iter(patch.choices.values())))
    assert chosen[1].ratio <= chosen[0].ratio
    assert 0.75 < chosen[1].share <= 0.8
    assert str(chosen[1]).endswith(" times as fast on made up")


@pytest.mark.slow
def test_where_asking_takes_the_time_no_speedup_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hardware, "of", lambda *_: machine(launch=1.0))
    unet = tiny.model("sd15")
    for guard in (False, True):
        with (
            tomadiff.apply(unet, speedup=1.1, guard=guard),
            pytest.raises(SettingError, match="merging saves nothing here"),
        ):
            run(unet)


@pytest.mark.slow
def test_sites_that_the_guard_leaves_out_are_counted_unmerged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "_BEFORE", 0)
    monkeypatch.setattr(Hardware, "of", lambda *_: machine(launch=7e-5))
    unet, chosen = tiny.model("sd15"), {}
    for guard in (False, True):
        with tomadiff.apply(unet, ToMA.paper(), speedup=1.01, guard=guard, schedule=Schedule(100, 100)) as patch:
            run(unet)
            chosen[guard] = next(iter(patch.choices.values()))
            left_out = sum(level.left_out for level in patch.report().models[0].levels)
            assert (left_out > 0) == guard
    assert chosen[True].ratio <= chosen[False].ratio  # without the calls that lose, less has to merge
