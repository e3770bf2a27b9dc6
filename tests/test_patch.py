"""``apply`` and the handle it returns, on small real models."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tests.families.contract import recorded, sites, traces
from tomadiff import Schedule, ToMA, ToMeSD
from tomadiff.engine.report import LevelReport
from tomadiff.errors import PatchError, SettingError, UnsupportedModelError
from tomadiff.methods import Method


@pytest.fixture
def unet() -> Any:
    """Two levels: 16×16 and 8×8 tokens for the inputs below."""
    return tiny.build("sd15").model


@pytest.fixture
def unet_of_one_level() -> Any:
    """Attention at 16×16 tokens only: a mask has one length, so there is no use for it in UNets of several levels."""
    return tiny._unet(
        block_out_channels=(16, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        mid_block_type="UNetMidBlock2D",
        attention_head_dim=2,
        cross_attention_dim=32,
    )


class Warnings:
    """What the library's logger has warned of so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog

    def __len__(self) -> int:
        return len(self.about(""))

    def about(self, text: str) -> list[str]:
        messages = [record.getMessage() for record in self.caplog.records if record.name == "tomadiff"]
        return [message for message in messages if text in message]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    caplog.set_level(logging.WARNING, "tomadiff")
    return Warnings(caplog)


def inputs(timestep: int = 500, batch: int = 1, seed: int = 0) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(seed)
    return {
        "sample": torch.randn(batch, 4, 16, 16, generator=noise),
        "timestep": timestep,
        "encoder_hidden_states": torch.randn(batch, 5, 32, generator=noise),
    }


def run(model: nn.Module, **more: Any) -> Tensor:
    with torch.no_grad():
        return model(**{**inputs(), **more}).sample


def levels(patch: tomadiff.Patch) -> tuple[LevelReport, ...]:
    return patch.report().models[0].levels


def plans(patch: tomadiff.Patch) -> list[int]:
    return [level.plans_made for level in levels(patch)]


# ---------------------------------------------------------------------------------------------- ways to say it
def test_ways_to_give_a_method(unet: Any) -> None:
    for arguments in ({"method": 0.25}, {"ratio": 0.25}, {"method": ToMA(0.25)}, {"method": ToMA(), "ratio": 0.25}):
        with tomadiff.apply(unet, **arguments) as patch:
            assert patch.method == ToMA(0.25)
    with tomadiff.apply(unet, span="block", levels=[1]) as patch:
        assert patch.method == ToMA(0.5, span="block", levels=(1,))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"method": 0.5, "ratio": 0.25}, "Two ratios"),
        ({"method": ["toma"]}, "give a ratio such as 0.5"),
        ({"method": True}, "give a ratio such as 0.5"),
        ({"ratio": 1.0}, "0.5 keeps half"),
        ({"ratio": -0.1}, "0.5 keeps half"),
        ({"ration": 0.5}, "no setting 'ration' (did you mean 'ratio'?); it has ratio"),
        ({"span": "layer"}, "choose one of 'op', 'block'"),
        ({"scope": "model"}, "choose one of 'level', 'block'"),
        ({"share": "none"}, "choose one of 'sample', 'prompt', 'batch'"),
        ({"levels": ()}, "numbers such as"),
        ({"levels": 1}, "numbers such as"),
        ({"levels": (-1,)}, "at least 0"),
        ({"levels": (2,)}, "2 levels with attention, numbered from 0 (the finest) to 1"),
        ({"levels": (0, 2)}, "2 levels with attention, numbered from 0 (the finest) to 1"),
        ({"skip": -1}, "at least 0"),
        ({"regions": 4}, "use Tiles(4)"),
        ({"selector": "best"}, "facility_location"),
        ({"unmerge": "inverse"}, "transpose"),
        ({"merge_attention": False, "merge_cross_attention": False, "merge_feed_forward": False}, "at least one"),
    ],
)
def test_settings_that_cannot_work_say_what_can(unet: Any, arguments: dict[str, Any], hint: str) -> None:
    before = traces(unet)
    with pytest.raises(SettingError) as error:
        tomadiff.apply(unet, **arguments)
    assert hint in str(error.value)
    assert traces(unet) == before


def test_skipping_every_block_matches_nothing(unet: Any) -> None:
    before = traces(unet)
    with pytest.raises(UnsupportedModelError, match=r"Skip fewer blocks.*Supported: .*UNet2DConditionModel"):
        tomadiff.apply(unet, skip=100)
    assert traces(unet) == before


def test_models_that_are_not_known_list_those_that_are() -> None:
    for target in (nn.Linear(2, 2), object(), "pipe"):
        for given in ((), (0.5,)):
            with pytest.raises(UnsupportedModelError, match="FluxTransformer2DModel") as error:
                tomadiff.apply(target, *given)
            assert type(target).__name__ in str(error.value)
            assert "WanTransformer3DModel" in str(error.value)


def test_models_that_cannot_profit_say_why() -> None:
    sana = diffusers.SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=8,
    )
    with pytest.raises(UnsupportedModelError, match="attention is linear"):
        tomadiff.apply(sana, 0.5)
    with pytest.raises(UnsupportedModelError, match="attention is linear"):
        tomadiff.apply(type("SanaPipeline", (), {"transformer": sana})(), 0.5)


def test_supported_families() -> None:
    known = {model for family in tomadiff.supported() for model in family.models}
    assert known >= {
        "UNet2DConditionModel",
        "FluxTransformer2DModel",
        "SD3Transformer2DModel",
        "PixArtTransformer2DModel",
        "QwenImageTransformer2DModel",
        "WanTransformer3DModel",
    }


# ---------------------------------------------------------------------------------------------- where it merges
def test_levels(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5), levels=(0,)) as patch:
        run(unet)
        assert [(level.level, level.tokens_before) for level in levels(patch)] == [(0, 256)]
    with tomadiff.apply(unet, ToMA.paper(0.5), levels=(1,)) as patch:
        run(unet)
        assert [(level.level, level.tokens_before) for level in levels(patch)] == [(1, 64)]


def test_scopes(unet: Any) -> None:
    """Seven transformers of one block: down 1 + 1, middle 1, up 2 + 2."""
    expected = {"level": ["level 0", "level 1"], "block": [f"block {place}" for place in range(7)]}
    for scope, names in expected.items():
        with tomadiff.apply(unet, 0.5, scope=scope) as patch:
            run(unet)
            assert [level.name for level in levels(patch)] == names
            assert plans(patch) == [1] * len(names)
            assert sum(level.sites for level in levels(patch)) == 7 * 3


def test_ops_can_be_left_alone(unet: Any) -> None:
    def wrapped(**settings: bool) -> set[str]:
        with tomadiff.apply(unet, 0.5, **settings):
            return {site.name.rsplit(".", 1)[-1] for _, site in sites(unet)}

    assert wrapped() == {"attn1", "attn2", "ff"}
    assert wrapped(merge_cross_attention=False) == {"attn1", "ff"}
    assert wrapped(merge_attention=False, merge_feed_forward=False) == {"attn2"}


def test_skip_leaves_the_first_blocks(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5), skip=2) as patch:
        assert not sites(unet.down_blocks)
        assert patch.report().models[0].skipped_blocks == 2
        assert levels(patch)[0].name == "level 1", "the middle comes first now"


def test_ratios_by_level(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=Schedule(ratio_at_level={0: 0.75, 1: 0.0})) as patch:
        run(unet)
        assert [level.tokens_after for level in levels(patch)] == [64, None]


# ---------------------------------------------------------------------------------------------- what it says
def test_the_summary_begins_with_its_table_and_ends_with_the_settings_in_force(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        head, *_, method, schedule = patch.summary().splitlines()
    assert head.split()[:4] == ["model", "grid", "tokens", "merged"]
    assert (
        method == "ToMA(0.5), span op, scope block, regions Tiles(4), unmerge least-squares, selector facility_location"
    )
    assert schedule == "Schedule: destinations every 1, weights every 1, from step 0"
    with tomadiff.apply(tiny.build("flux").model, 0.5) as patch:
        assert "quota shared, proportional on" in patch.summary().splitlines()[-2], "what suits the family"


def test_report_and_summary(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5)) as patch:
        assert "nothing is merged: the model has not run yet" in patch.summary()
        run(unet)
        (model,) = patch.report().models
        finest = model.levels[0]
        assert (model.component, model.model, model.merged) == ("model", "UNet2DConditionModel", True)
        assert (finest.name, finest.level, finest.grid) == ("level 0", 0, "16×16")
        assert (finest.tokens_before, finest.tokens_after, finest.realised_ratio) == (256, 128, 0.5)
        assert (finest.plans_made, finest.weights_made) == (1, 0)
        assert finest.sites == 3 * 3
        assert 0.5 < finest.coverage <= 1
        assert "256 → 128" in patch.summary()
        assert "nothing is merged" not in patch.summary()
        assert "unmerged" not in patch.summary()
    assert "256 → 128" in patch.summary(), "a removed patch remembers"


def test_nothing_is_held_between_steps_but_plans(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5, levels=(0,)) as patch:
        run(unet)
        assert not any(isinstance(value, Tensor) for _, site in sites(unet) for value in vars(site).values())
        assert levels(patch)[0].bytes_held == sites(unet)[0][1].group.plan.nbytes


def test_repr(unet: Any) -> None:
    patch = tomadiff.apply(unet, 0.5)
    assert "Patch(on model" in repr(patch)
    patch.remove()
    assert "Patch(removed: model" in repr(patch)


def test_ratio_zero_is_said_once(unet: Any, warnings: Warnings) -> None:
    plain = run(unet)
    with tomadiff.apply(unet, 0) as patch:
        assert torch.equal(run(unet), plain)
        run(unet)
        assert len(warnings) == len(warnings.about("ratio=0 merges nothing")) == 1
        assert "nothing is merged: the ratio is 0" in patch.summary()


def test_a_window_not_reached_is_said(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5, schedule=Schedule(start=5)) as patch:
        run(unet)
        assert "nothing is merged: no step so far" in patch.summary()


# ---------------------------------------------------------------------------------------------- when it must not merge
def check_bypass(unet: Any, warnings: Warnings, reason: str, sites_unmerged: set[str], **more: Any) -> None:
    """Sites in question compute what they always did, with one warning and a line in the summary."""
    with tomadiff.apply(unet, 0.5, levels=(0,)) as patch:
        calls = recorded(unet, lambda: run(unet, **more))
        run(unet, **more)
        for call in calls:
            name = next(site.name for module, site in sites(unet) if module is call.module)
            unmerged = type(call.module).forward(call.module, call.tokens, *call.arguments[0], **call.arguments[1])
            assert torch.equal(call.outputs[0], unmerged) == (name.rsplit(".", 1)[-1] in sites_unmerged)
        assert len(warnings.about(reason)) == 1
        assert reason in patch.summary()
        assert {key.split(":")[0].rsplit(".", 1)[-1] for key in levels(patch)[0].bypassed} == sites_unmerged


def half_mask() -> Tensor:
    return (torch.arange(256) < 128)[None]


def test_masks_over_image_tokens_are_bypassed(unet_of_one_level: Any, warnings: Warnings) -> None:
    check_bypass(unet_of_one_level, warnings, "self-attention mask", {"attn1"}, attention_mask=half_mask())


def test_plans_stay_fresh_where_the_leading_site_is_bypassed(unet_of_one_level: Any) -> None:
    with tomadiff.apply(unet_of_one_level, ToMA.paper(0.5), schedule=Schedule(2, 1)) as patch:
        for timestep in (900, 800, 700, 600, 500):
            run(unet_of_one_level, timestep=timestep, attention_mask=half_mask())
        assert plans(patch) == [3]


def test_ip_adapter_masks_are_bypassed(unet: Any, warnings: Warnings) -> None:
    masks = {"ip_adapter_masks": [torch.ones(1, 1, 16, 16)]}
    check_bypass(unet, warnings, "ip_adapter_masks", {"attn1", "attn2"}, cross_attention_kwargs=masks)


@pytest.mark.parametrize("dim", [0, 1])
def test_chunked_feed_forward_is_bypassed(unet: Any, warnings: Warnings, dim: int) -> None:
    for block in unet.modules():
        if hasattr(block, "set_chunk_feed_forward"):
            block.set_chunk_feed_forward(1 if dim == 0 else 64 // 2, dim)
    plain = run(unet, **inputs(batch=2))
    with tomadiff.apply(unet, 0.5, merge_attention=False, merge_cross_attention=False) as patch:
        # Not bit for bit: tokens lie in another order, and sums over them are rounded in another.
        assert torch.allclose(run(unet, **inputs(batch=2)), plain, atol=1e-6)
        run(unet, **inputs(batch=2))
        assert len(warnings.about("chunked feed-forward")) == 1
        assert "chunked feed-forward" in patch.summary()


def test_gradients_are_bypassed(unet: Any, warnings: Warnings) -> None:
    plain = run(unet)
    with tomadiff.apply(unet, 0.5) as patch:
        result = unet(**inputs()).sample
        assert torch.equal(result, plain)
        assert result.requires_grad
        assert len(warnings.about("gradients")) == 1
        assert "every call ran unmerged" in patch.summary()
        assert not torch.equal(run(unet), plain)


def test_gradients_of_a_few_late_weights_are_bypassed_everywhere(unet: Any) -> None:
    """As with adapters in training: the first tokens need no gradient, the weights behind them do."""
    unet.requires_grad_(False)
    plain = run(unet)
    with tomadiff.apply(unet, 0.5):
        assert not torch.equal(unet(**inputs()).sample, plain), "nothing to train: merges"
        unet.conv_out.requires_grad_(True)
        assert torch.equal(unet(**inputs()).sample, plain)


def test_inference_mode() -> None:
    for name in ("sd15", "flux"):
        one = tiny.build(name)
        with tomadiff.apply(one.pipe, 0.5):
            merged = one.draw()
            with torch.inference_mode():
                assert torch.equal(one.draw(), merged)


def test_a_grid_that_cannot_be_read_is_bypassed(warnings: Warnings) -> None:
    one = tiny.build("flux")
    ids = torch.tensor([(0, row, column) for row in range(4) for column in range(4)]).float()[torch.randperm(16)]
    call = {
        "hidden_states": torch.randn(1, 16, 16),
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([1.0]),
        "img_ids": ids,
        "txt_ids": torch.zeros(3, 3),
    }
    plain = run_flux(one.model, call)
    with tomadiff.apply(one.model, 0.5) as patch:
        assert torch.equal(run_flux(one.model, call), plain)
        run_flux(one.model, call)
        assert len(warnings) == 1
        assert "the grid of the tokens could not be read" in patch.summary()


def run_flux(model: Any, call: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return model(**call).sample


# ---------------------------------------------------------------------------------------------- changing and removing
def test_set_changes_settings_in_place(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        run(unet)
        patch.set(ratio=0.25)
        patch.begin()  # or random destinations would go on from those of the first call
        quarter = run(unet)
        assert levels(patch)[0].tokens_after == 192
        patch.set(schedule=Schedule(destinations_every=1))
        assert patch.schedule.destinations_every == 1
        assert patch.method.ratio == 0.25
    with tomadiff.apply(unet, 0.25):
        assert torch.equal(run(unet), quarter)


def test_set_that_cannot_work_changes_nothing(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        merged = run(unet)
        for wrong in ({"levels": (9,)}, {"skip": 100}, {"ratio": 2}, {"ration": 0.1}):
            with pytest.raises((SettingError, UnsupportedModelError)):
                patch.set(**wrong)
            assert patch.active
            assert patch.method == ToMA(0.5)
            patch.begin()
            assert torch.equal(run(unet), merged)


def test_set_to_zero_is_said(unet: Any, warnings: Warnings) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        patch.set(ratio=0.0)
        assert warnings.about("ratio=0 merges nothing")


def test_a_removed_patch_cannot_be_set(unet: Any) -> None:
    patch = tomadiff.apply(unet, 0.5)
    patch.remove()
    patch.remove()
    assert not patch.active
    with pytest.raises(PatchError, match=r"call tomadiff\.apply again"):
        patch.set(ratio=0.25)


def test_applying_again_replaces(unet: Any) -> None:
    plain, before = run(unet), traces(unet)
    first = tomadiff.apply(unet, 0.5)
    second = tomadiff.apply(unet, 0.25)
    assert (first.active, second.active) == (False, True)
    quarter = run(unet)
    first.remove()
    with pytest.raises(PatchError):
        first.set(ratio=0.1)
    second.begin()
    assert torch.equal(run(unet), quarter), "the first handle has no power over the second patch"
    second.remove()
    assert traces(unet) == before
    assert torch.equal(run(unet), plain)


def test_applying_again_in_vain_keeps_the_first(unet: Any) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        merged = run(unet)
        with pytest.raises(SettingError):
            tomadiff.apply(unet, 0.25, levels=(7,))
        assert patch.active
        patch.begin()
        assert torch.equal(run(unet), merged)


def test_all_models_of_a_pipeline_or_none() -> None:
    first, second = tiny.build("sd15").model, tiny.build("flux").model
    before = traces(first), traces(second)
    both = type("Both", (), {"unet": first, "transformer": second})()
    with pytest.raises(SettingError):
        tomadiff.apply(both, 0.5, levels=(1,))  # a UNet has such a level, a transformer does not
    assert (traces(first), traces(second)) == before
    with tomadiff.apply(both, 0.5) as patch:
        assert [model.component for model in patch.report().models] == ["unet", "transformer"]
    assert (traces(first), traces(second)) == before


def test_remove_by_target() -> None:
    one = tiny.build("sd15")
    before = traces(one.model)
    for target in (one.pipe, one.model):
        tomadiff.apply(one.pipe, 0.5)
        tomadiff.remove(target)
        assert traces(one.model) == before
        tomadiff.remove(target)


def test_a_copy_speaks_for_itself(unet_of_one_level: Any, warnings: Warnings) -> None:
    """The copy's warnings, plans and counts are its own."""
    patch = tomadiff.apply(unet_of_one_level, ToMA.paper(0.5))
    twin = copy.deepcopy(unet_of_one_level)
    run(twin, attention_mask=half_mask())
    assert plans(patch) == [0]
    assert len(warnings) == 1
    assert not levels(patch)[0].bypassed
    run(unet_of_one_level, attention_mask=half_mask())
    assert len(warnings) == 2
    tomadiff.remove(twin)
    assert patch.active


# ---------------------------------------------------------------------------------------------- loops of one's own
def test_begin_and_step(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=Schedule(destinations_every=4, weights_every=2)) as patch:
        for _ in range(2):
            patch.begin(steps=8)
            for step in range(8):
                patch.step(step)
                run(unet)
        assert plans(patch) == [4, 4]
        assert [level.weights_made for level in levels(patch)] == [4, 4]


def test_a_bare_model_counts_timesteps(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=Schedule(2, 1)) as patch:
        for timestep in (900, 800, 700, 600):
            run(unet, timestep=timestep)
        assert plans(patch) == [2, 2]
        run(unet, timestep=900)  # larger: another picture
        assert plans(patch) == [3, 3]


def test_shares_of_a_run_need_its_length(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5), schedule=Schedule(start=0.5)) as patch:
        with pytest.raises(SettingError, match=r"patch\.begin\(steps="):
            run(unet)
        plain = run_removed(unet)
        patch.begin(steps=2)
        assert torch.equal(run(unet, timestep=500), plain)
        assert not torch.equal(run(unet, timestep=499), plain)
        assert plans(patch) == [1, 1]


def run_removed(unet: Any) -> Tensor:
    twin = copy.deepcopy(unet)
    tomadiff.remove(twin)
    return run(twin)


def test_a_loop_at_one_timestep_does_not_pile_up_plans(unet: Any) -> None:
    with tomadiff.apply(unet, ToMA.paper(0.5)) as patch:
        for _ in range(12):
            run(unet)
        held = levels(patch)[0].bytes_held
        for _ in range(12):
            run(unet)
        assert levels(patch)[0].bytes_held == held
        assert plans(patch) == [1, 1]


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_steps_are_whole_numbers(unet: Any, wrong: Any) -> None:
    with tomadiff.apply(unet, 0.5) as patch, pytest.raises(SettingError, match="whole number"):
        patch.begin(steps=wrong)


def test_guidance_is_found_anew_when_the_batch_changes(unet: Any) -> None:
    """Two equal halves are guidance; four different pictures at the next timestep are not."""
    with tomadiff.apply(unet, ToMA.paper(0.5)) as patch:
        pair = inputs(900)["sample"].repeat(2, 1, 1, 1)
        run(unet, **{**inputs(900, batch=2), "sample": pair})
        (_, site), *_ = sites(unet)
        assert torch.equal(*site.group.plan.local_index)
        run(unet, **inputs(800, batch=4))
        places = site.group.plan.local_index
        assert not torch.equal(places[0], places[2])
        assert plans(patch) == [2, 2]


def test_methods_are_not_shared_with_the_caller(unet: Any) -> None:
    method = ToMA(0.5)
    with tomadiff.apply(unet, method) as patch:
        patch.set(ratio=0.25)
    assert method == replace(ToMA(), ratio=0.5)


def test_what_happens_before_a_call_does_not_search_the_model(unet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model has thousands of modules, and a step on a GPU may take less time than looking through them."""
    with tomadiff.apply(unet, 0.5, scope="block") as patch:
        run(unet)
        for name in ("dtype", "attn_processors"):
            monkeypatch.setattr(type(unet), name, property(lambda _: pytest.fail("it searched the model")))
        patch._models[0].before_call((), inputs(timestep=400))
    assert plans(patch) == [1] * 7


@pytest.mark.parametrize(
    ("method", "intervals"), [(ToMA(0.5), (1, 1)), (ToMA.paper(0.5), (10, 5)), (ToMeSD(0.5), (1, 1))]
)
def test_a_window_of_ones_own_keeps_plans_as_long_as_the_method_does(
    method: Method, intervals: tuple[int, int]
) -> None:
    model = tiny.model("sd15")
    with tomadiff.apply(model, method, schedule=Schedule(start=2)) as patch:
        assert (patch.schedule.intervals, patch.schedule.start) == (intervals, 2)
        patch.set(schedule=Schedule(start=3))
        assert (patch.schedule.intervals, patch.schedule.start) == (intervals, 3)
