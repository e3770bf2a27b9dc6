"""Whole pipelines: when plans are made, who shares them, and every way to start from a picture."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from diffusers import schedulers
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tests.families.contract import sites
from tomadiff import Schedule, Tiles, ToMA
from tomadiff.engine.group import PlanGroup
from tomadiff.engine.report import LevelReport


def levels(patch: tomadiff.Patch) -> tuple[LevelReport, ...]:
    return patch.report().models[0].levels


def groups(model: nn.Module) -> list[PlanGroup]:
    return list({id(site.group): site.group for _, site in sites(model)}.values())


def made(patch: tomadiff.Patch) -> list[tuple[int, int]]:
    """Plans and renewed weights of every level."""
    return [(level.plans_made, level.weights_made) for level in levels(patch)]


# ---------------------------------------------------------------------------------------------- every pipeline
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_pipeline_merges_and_is_restored(name: str) -> None:
    one = tiny.build(name)
    plain = one.draw()
    with tomadiff.apply(one.pipe, 0.5) as patch:
        merged = one.draw()
        assert torch.equal(one.draw(), merged), "a second picture starts afresh"
        assert all(level.tokens_after < level.tokens_before for level in levels(patch))
        assert not patch.report().models[0].bypassed
    assert merged.isfinite().all()
    assert not torch.equal(merged, plain)
    assert torch.equal(one.draw(), plain)


# ---------------------------------------------------------------------------------------------- defaults of the paper
@pytest.mark.parametrize(("double", "single", "skipped"), [(2, 3, 1), (3, 9, 2), (19, 38, 10)])
def test_flux_skips_its_first_blocks_in_the_papers_proportion(double: int, single: int, skipped: int) -> None:
    model = tiny.flux(double, single).model
    with tomadiff.apply(model, ToMA.paper(0.5)) as patch:
        assert patch.report().models[0].skipped_blocks == skipped
        first = model.transformer_blocks[skipped]
        assert {id(module) for module, _ in sites(model)} >= {
            id(first.attn),
            id(first.ff),
        }
        assert not sites(model.transformer_blocks[skipped - 1])
    with tomadiff.apply(model, 0.5, skip=0):
        assert sites(model.transformer_blocks[0])
    with tomadiff.apply(model, 0.5, skip=double):
        assert not sites(model.transformer_blocks)
        assert len(sites(model)) == single


@pytest.mark.parametrize("name", ["sd15", "sdxl"])  # schedulers without and with a step_index
def test_destinations_last_ten_steps_and_weights_five(name: str) -> None:
    one = tiny.build(name)
    with tomadiff.apply(one.pipe, ToMA.paper(0.5)) as patch:
        one.draw(num_inference_steps=20)
        assert made(patch) == [(2, 2), (2, 2)]
        assert all(group.last.layout is Tiles(4).layout(group.plan.grid) for group in groups(one.model))
        one.draw(num_inference_steps=3)
        assert made(patch) == [(3, 2), (3, 2)]


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_by_default_every_block_plans_at_every_step(name: str) -> None:
    one = tiny.build(name)
    blocks = sum(type(module).__name__ == "BasicTransformerBlock" for module in one.model.modules())
    with tomadiff.apply(one.pipe, 0.5) as patch:
        one.draw(num_inference_steps=20)
        assert made(patch) == [(20, 0)] * blocks
        one.draw(num_inference_steps=3)
        assert made(patch) == [(20 + 3, 0)] * blocks


def test_another_schedule() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, ToMA.paper(0.5), schedule=Schedule(destinations_every=2, weights_every=1)) as patch:
        one.draw(num_inference_steps=5)
        assert made(patch) == [(3, 2), (3, 2)]


def test_window_in_steps_and_in_shares_of_the_run() -> None:
    for window in (Schedule(start=2), Schedule(start=0.5)):
        one = tiny.build("sdxl")
        seen: list[bool] = []

        def watch(_: Any, __: Any, module: Any = one.model, seen: list[bool] = seen) -> None:
            seen.append(groups(module)[0].active)

        with tomadiff.apply(one.pipe, 0.5, schedule=window):
            one.model.mid_block.register_forward_pre_hook(watch)
            one.draw(num_inference_steps=4)
        assert seen == [False, False, True, True]


# ---------------------------------------------------------------------------------------------- guidance
def test_passes_in_one_batch_share_destinations_and_not_weights() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, 0.5):
        one.draw(prompt=["a fox", "a hen"], num_inference_steps=2)
        for group in groups(one.model):
            places, weights = group.plan.local_index, group.plan.unmerge_matrix
            assert torch.equal(places[:2], places[2:]), "uncond and cond of a prompt"
            assert not torch.equal(places[0], places[1]), "two prompts"
            assert not torch.equal(weights[:2], weights[2:])


def test_no_guidance_no_sharing() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, 0.5):
        one.draw(prompt=["a fox", "a hen"], guidance_scale=0.0, num_inference_steps=2)
        assert all(not torch.equal(*group.plan.local_index) for group in groups(one.model))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("flux", {"negative_prompt": "rain", "true_cfg_scale": 2.0}), ("wan", {})],
)
def test_separate_passes_share_destinations_and_not_weights(name: str, settings: dict[str, Any]) -> None:
    one = tiny.build(name)
    with tomadiff.apply(one.pipe, ToMA.paper(0.5)) as patch:
        one.draw(num_inference_steps=12, **settings)
        (group,) = groups(one.model)
        first, second = group.records[0].plan, group.records[1].plan
        assert set(group.records) == {0, 1}
        assert torch.equal(first.local_index, second.local_index)
        assert first is not second
        if name == "flux":  # the tokens that Wan plans from have not met the text yet: equal weights are right
            assert not torch.equal(first.merge_matrix, second.merge_matrix)
        assert made(patch) == [(2, 1 + 3)]  # at steps 0 and 10; at 5, and by the second pass at 0, 5 and 10


# ---------------------------------------------------------------------------------------------- schedulers
@pytest.mark.parametrize("bare", [False, True])  # a bare model knows no scheduler, only that a picture is done
@pytest.mark.parametrize("name", ["sd15", "sdxl", "flux"])
def test_one_step_pictures_are_planned_one_by_one(name: str, bare: bool) -> None:
    one = tiny.build(name)
    target = one.model if bare else one.pipe
    with tomadiff.apply(target, 0.5) as patch:
        for seed in range(3):
            one.draw(seed, num_inference_steps=1)
        assert {plans for plans, _ in made(patch)} == {3}
        again = one.draw(1, num_inference_steps=1)
    with tomadiff.apply(target, 0.5):
        assert torch.equal(one.draw(1, num_inference_steps=1), again)


SCHEDULERS = (
    "DDIMScheduler",
    pytest.param("DDPMScheduler", marks=pytest.mark.slow),
    pytest.param("PNDMScheduler", marks=pytest.mark.slow),
    "LCMScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    pytest.param("KDPM2DiscreteScheduler", marks=pytest.mark.slow),
    "DPMSolverMultistepScheduler",
    pytest.param("DPMSolverSinglestepScheduler", marks=pytest.mark.slow),
)


SEVERAL = ("HeunDiscreteScheduler", "KDPM2DiscreteScheduler", "PNDMScheduler")  # evaluations in a step, each counted


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_kind_of_scheduler(kind: str) -> None:
    """A picture is the same whatever was drawn before it, and plans are made about as often as the steps say."""
    one = tiny.build("sd15")
    one.pipe.scheduler = getattr(schedulers, kind).from_config(one.pipe.scheduler.config)
    with tomadiff.apply(one.pipe, ToMA.paper(0.5)) as patch:
        first = one.draw(num_inference_steps=6)
        (plans, weights), _ = made(patch)
        assert plans in ((1, 2) if kind in SEVERAL else (1,))
        assert 1 <= weights <= 3
        one.draw(seed=5, num_inference_steps=6)
        assert torch.equal(one.draw(num_inference_steps=6), first)
        assert made(patch)[0] == (3 * plans, 3 * weights)
    with tomadiff.apply(one.pipe, 0.5) as patch:
        first = one.draw(num_inference_steps=6)
        one.draw(seed=5, num_inference_steps=6)
        assert torch.equal(one.draw(num_inference_steps=6), first)
        assert not patch.report().models[0].bypassed


def test_a_size_may_change_between_pictures_and_within_a_patch() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, 0.5) as patch:
        for height, width in ((64, 64), (32, 96), (72, 40)):
            picture = one.draw(height=height, width=width, num_inference_steps=2)
            assert picture.shape[-2:] == (height, width)
            assert levels(patch)[0].grid == f"{height // 4}×{width // 4}"
        assert not patch.report().models[0].bypassed


# ---------------------------------------------------------------------------------------------- from a picture
def _picture() -> Tensor:
    return torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))


def _mask() -> Tensor:
    mask = torch.zeros(1, 1, 64, 64)
    mask[..., 16:48, 16:48] = 1
    return mask


def _controlled(one: tiny.Tiny) -> Any:
    torch.manual_seed(4)
    controlnet = diffusers.ControlNetModel.from_unet(one.pipe.unet, conditioning_channels=3)
    controlnet.controlnet_cond_embedding = diffusers.models.controlnets.controlnet.ControlNetConditioningEmbedding(
        8, block_out_channels=(8, 16)
    )
    for convolution in controlnet.controlnet_down_blocks:  # zero when new: without this it would control nothing
        nn.init.normal_(convolution.weight, std=0.2)
    return diffusers.StableDiffusionXLControlNetPipeline.from_pipe(one.pipe, controlnet=controlnet.eval())


WAYS = {  # the pipeline, its inputs, and how many of five steps it takes
    "img2img": (
        lambda one: diffusers.StableDiffusionXLImg2ImgPipeline.from_pipe(one.pipe),
        lambda: {"image": _picture(), "strength": 0.6},
        3,
    ),
    "inpaint": (
        lambda one: diffusers.StableDiffusionXLInpaintPipeline.from_pipe(one.pipe),
        lambda: {
            "image": _picture(),
            "mask_image": _mask(),
            "strength": 0.9,
            "height": 64,
            "width": 64,
        },
        4,
    ),
    "controlnet": (
        _controlled,
        lambda: {"image": _picture(), "height": 64, "width": 64},
        5,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_start_from_a_picture(way: str) -> None:
    """The pipelines share the UNet, so a patch of one holds for the other too."""
    build, inputs, steps = WAYS[way]
    one = tiny.build("sdxl")
    started = tiny.Tiny(build(one), inputs(), steps=5)
    plain = started.draw()
    with tomadiff.apply(started.pipe, 0.5) as patch:
        merged = started.draw()
        assert torch.equal(started.draw(), merged)
        assert {plans for plans, _ in made(patch)} == {2 * steps}
        assert not patch.report().models[0].bypassed
    assert not torch.equal(merged, plain)
    assert torch.equal(started.draw(), plain)


def test_a_patched_unet_serves_another_pipeline() -> None:
    one = tiny.build("sdxl")
    with tomadiff.apply(one.pipe, 0.5) as patch:
        other = tiny.Tiny(
            diffusers.StableDiffusionXLImg2ImgPipeline.from_pipe(one.pipe),
            {"image": _picture()},
        )
        picture = other.draw()
        one.draw()
        assert torch.equal(other.draw(), picture)
        assert {plans for plans, _ in made(patch)} == {1 + 4 + 1}  # steps, of four at most
