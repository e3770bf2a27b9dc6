"""Joint attention that sees all of the text and some of the image: its keys are weighed, its answers averaged."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend
from torch import Tensor, nn

import tomadiff
from tests.adapters import test_families as families
from tests.adapters.contract import CLOSE, SiteCall, as_tuple, dense, kept_rows, sites
from tests.test_carry import FRESH, answers, watched
from tomadiff import Schedule, ToMA
from tomadiff.adapters.flux import FAMILY as FLUX_FAMILY
from tomadiff.sites import Site

FLUX = families.TestFlux()
AFTER_ONE = Schedule(1, 1, start=1)


def bias_of(call: SiteCall, text: int) -> Tensor:
    """Zero for text and reference tokens, ``log(N / K)`` for merged ones."""
    tail = call.tokens.shape[1] - call.plan.tokens
    weights = [0.0] * text + [math.log(call.plan.tokens / call.plan.kept)] * call.plan.kept + [0.0] * tail
    return torch.tensor(weights)[None, None, None]


def by_hand(family: families.TestFlux, call: SiteCall, before: SiteCall | None) -> list[Tensor]:
    """``last + U·s(f(M·x) − M·last)``: attention with the bias, ``s`` a power of the share that is kept."""
    merge, unmerge = dense(call.plan, call.tokens)
    merged = merge @ call.tokens
    args, kwargs = family.pick_rows(call.arguments, kept_rows(call.plan), call.tokens.shape[1])
    bias = {"attention_mask": bias_of(call, family.text)}
    extra = {"attention": bias, "block": {"joint_attention_kwargs": bias}}.get(call.kind, {})
    power = {"attention": 0.5, "block": 0.25}.get(call.kind, 0.0)
    with torch.no_grad():
        given = as_tuple(type(call.module).forward(call.module, merged, *args, **{**kwargs, **extra}))
    given = [out for out in given if out.shape[1] == merged.shape[1]]
    few = [out - merged for out in given] if call.kind == "block" else given
    if before is None:
        return [unmerge @ answer for answer in few]
    share = (call.plan.kept / call.plan.tokens) ** power
    return [
        last + unmerge @ (share * (answer - merge @ last)) for answer, last in zip(few, answers(before), strict=True)
    ]


@pytest.mark.parametrize("span", ["op", "block"])
@pytest.mark.parametrize("family", [families.TestFlux, families.TestFluxKontext])
def test_every_site_by_hand(family: type[families.TestFlux], span: Any) -> None:
    one = family()
    model, given = one.model(), [one.inputs(8, 8, (seed,)) for seed in range(3)]
    with tomadiff.apply(model, 0.75, span=span, skip=0, schedule=FRESH, cautious=True) as patch:
        seen = watched(patch, model, given)
        assert not patch.report().models[0].bypassed
    for step, calls in enumerate(seen):
        for place, call in enumerate(calls):
            expected = by_hand(one, call, seen[step - 1][place] if step else None)
            assert all(torch.allclose(*both, **CLOSE) for both in zip(answers(call), expected, strict=True))


def slots_after(model: nn.Module, steps: int = 20, **settings: Any) -> list[tuple[bool, bool]]:
    """Whether each slot is cautious and weighs keys, at the second step of a run."""
    with tomadiff.apply(model, 0.5, skip=0, **settings) as patch:
        patch.begin(steps=steps)
        for step in range(2):
            patch.step(step)
            FLUX.run(model, **FLUX.inputs(8, 8, (step,)))
        return [(site.slot.cautious, site.slot.weighs) for _, site in sites(model)]


@pytest.mark.parametrize(
    ("cautious", "settings"),
    [
        (True, {}),
        (True, {"schedule": AFTER_ONE}),
        (False, {"steps": 4}),  # the first step of four merges: what would be averaged is no better than the new
        (False, {"schedule": FRESH}),
        (False, {"cautious": False}),
        (True, {"cautious": True, "steps": 4}),
        (False, {"carry": False}),
    ],
)
def test_where_answers_began_exact(cautious: bool, settings: dict[str, Any]) -> None:
    assert set(slots_after(FLUX.model(), **settings)) == {(cautious, cautious)}


def test_the_paper_is_not_cautious() -> None:
    model = FLUX.model()
    with tomadiff.apply(model, ToMA.paper(0.5), skip=0):
        FLUX.run(model, **FLUX.inputs(8, 8))
        assert not any(site.slot.cautious for _, site in sites(model))


def test_models_without_joint_attention_do_not_change() -> None:
    one = families.TestSD15()
    model, given = one.model(), [one.inputs(16, 16, (seed,)) for seed in range(3)]
    results = []
    for cautious in (True, False):
        with tomadiff.apply(model, 0.5, schedule=AFTER_ONE, cautious=cautious) as patch:
            patch.begin()
            results.append([one.run(model, **inputs) for inputs in given])
    assert all(torch.equal(*both) for both in zip(*results, strict=True))


def test_backends_that_take_no_mask_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FLUX.model()
    with attention_backend(AttentionBackendName.NATIVE):
        assert set(slots_after(model)) == {(True, True)}
    processor = model.transformer_blocks[0].attn.processor
    monkeypatch.setattr(type(processor), "_attention_backend", AttentionBackendName.FLASH)
    assert FLUX_FAMILY.takes_bias(model) is False


def test_a_mask_of_ones_own_is_kept() -> None:
    """Nobody knows which of its rows a merged token should have."""
    model, given = FLUX.model(), FLUX.inputs(8, 8)
    mask = torch.zeros(1, 1, 1, FLUX.text + 64)
    mask[..., 5] = -1.0
    given["joint_attention_kwargs"] = {"attention_mask": mask}
    expected = FLUX.run(model, **given)
    with tomadiff.apply(model, 0.5, skip=0, cautious=True, schedule=FRESH, merge_feed_forward=False) as patch:
        assert torch.equal(FLUX.run(model, **given), expected)
        assert any("mask" in reason for reason in patch.report().models[0].bypassed)


def test_sites_know_how_to_take_their_answers() -> None:
    model = FLUX.model()
    with tomadiff.apply(model, 0.5, skip=0):
        found: dict[str, Site] = {type(module).__name__: site for module, site in sites(model)}
    assert found["FluxAttention"].caution is not None
    assert found["FluxSingleTransformerBlock"].caution is not None
    assert found["FeedForward"].caution is None
