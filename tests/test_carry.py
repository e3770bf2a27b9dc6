"""Answers that are carried on: what a layer gives at a step is what it gave last, plus how that changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock
from torch import Tensor, nn

import tomadiff
from tests.adapters import test_families as families
from tests.adapters.contract import CLOSE, FamilyContract, SiteCall, as_tuple, dense, kept_rows, recorded, sites
from tomadiff import Grid, Schedule, Stripes, ToMA
from tomadiff.plan import PickPlan
from tomadiff.planner import Dice, Moment, Planner

Inputs = dict[str, Any]
FRESH = Schedule(1, 1)  # new plans at every step, and the first step merges
UNET = families.TestSD15()
FAMILIES = (
    families.TestSD15,
    families.TestSDXL,
    families.TestFlux,
    families.TestFluxKontext,  # with tokens of reference pictures behind the grid
    families.TestSD3,
    families.TestPixArt,
    families.TestWan,
    families.TestQwenImageEdit,
)


@pytest.fixture
def unet() -> nn.Module:
    """Two levels: 16×16 and 8×8 tokens for the inputs below."""
    return UNET.model()


def inputs(seed: int = 0, batch: int = 1, side: int = 16) -> Inputs:
    """A step's own picture."""
    return UNET.inputs(side, side, tuple(10 * seed + place for place in range(batch)))


def run(model: nn.Module, given: Inputs) -> Tensor:
    return UNET.run(model, **given)


def draw(patch: tomadiff.Patch, model: nn.Module, steps: Iterable[Inputs]) -> list[Tensor]:
    """One picture, with a call for each of ``steps``."""
    patch.begin()
    results = []
    for step, given in enumerate(steps):
        patch.step(step)
        results.append(run(model, given))
    return results


def watched(patch: tomadiff.Patch, model: nn.Module, steps: Iterable[Inputs]) -> list[list[SiteCall]]:
    """One picture: what its sites were given and gave, step by step."""
    patch.begin()
    seen = []
    for step, given in enumerate(steps):
        patch.step(step)
        seen.append(recorded(model, lambda given=given: run(model, given)))
    return seen


# ---------------------------------------------------------------------------------------------- by hand
def answers(call: SiteCall) -> list[Tensor]:
    """What a site gave of image length; of a whole block, what it added."""
    own = [out for out in call.outputs if out.shape[1] == call.tokens.shape[1]]
    return [out - call.tokens for out in own] if call.kind == "block" else own


def by_hand(family: FamilyContract, call: SiteCall, before: SiteCall | None = None) -> list[Tensor]:
    """``last + U(f(M·x) − M·last)``, or ``U·f(M·x)`` for a call that has none ``before`` it, with dense matrices."""
    merge, unmerge = dense(call.plan, call.tokens)
    merged = merge @ call.tokens
    args, kwargs = family.pick_rows(call.arguments, kept_rows(call.plan), call.tokens.shape[1])
    with torch.no_grad():
        given = as_tuple(type(call.module).forward(call.module, merged, *args, **kwargs))
    given = [out for out in given if out.shape[1] == merged.shape[1]]
    few = [out - merged for out in given] if call.kind == "block" else given
    if before is None:
        return [unmerge @ answer for answer in few]
    return [last + unmerge @ (answer - merge @ last) for answer, last in zip(few, answers(before), strict=True)]


def are_close(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.allclose(one, other, **CLOSE) for one, other in zip(found, expected, strict=True))


def check(family: FamilyContract, calls: list[SiteCall], before: list[SiteCall] | None = None) -> None:
    for place, call in enumerate(calls):
        last = None if before is None else before[place]
        assert last is None or last.module is call.module
        assert are_close(answers(call), by_hand(family, call, last))


@pytest.mark.parametrize("span", ["op", "block"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_goes_on_from_what_it_gave_last(family: type[FamilyContract], span: Any) -> None:
    one = family()
    model, given = one.model(), [one.inputs(8, 8, seeds) for seeds in ((0, 1), (2, 3), (4, 5))]
    with tomadiff.apply(model, 0.5, span=span, skip=0, schedule=FRESH) as patch:
        seen = watched(patch, model, given)
        assert not patch.report().models[0].bypassed
    assert all(isinstance(call.plan, PickPlan) for calls in seen for call in calls)
    check(one, seen[0])
    check(one, seen[1], seen[0])
    check(one, seen[2], seen[1])
    assert not are_close(answers(seen[2][0]), by_hand(one, seen[2][0])), "carried or not makes a difference"


def test_destinations_get_the_answer_of_the_layer_and_others_keep_theirs(unet: nn.Module) -> None:
    """The pseudo-inverse of picking puts back what was picked, and leaves the rest alone."""
    with tomadiff.apply(unet, 0.5, unmerge="pseudo-inverse", schedule=FRESH) as patch:
        before, after = watched(patch, unet, [inputs(0), inputs(1)])
    for call, last in zip(after, before, strict=True):
        rows = kept_rows(call.plan)[0]
        args, kwargs = call.arguments
        with torch.no_grad():
            own = type(call.module).forward(call.module, call.tokens[:, rows], *args, **kwargs)
        others = torch.ones(call.tokens.shape[1], dtype=torch.bool).index_fill(0, rows, False)
        assert others.sum() == len(rows)
        assert torch.allclose(call.outputs[0][:, rows], own, **CLOSE)
        assert torch.allclose(call.outputs[0][:, others], last.outputs[0][:, others], **CLOSE)


# ---------------------------------------------------------------------------------------------- what is known
def planners(model: nn.Module) -> list[Planner]:
    return list({id(site.slot): site.slot.planner for _, site in sites(model)}.values())


def test_answers_belong_to_the_tokens_that_are_known(unet: nn.Module) -> None:
    """Unmerged steps make everything known; merged ones by the matrices that spread the answers."""
    with tomadiff.apply(unet, 0.5, schedule=Schedule(1, 1, start=1)) as patch:
        before, after = watched(patch, unet, [inputs(0), inputs(1)])
        leading = {module: site.slot.planner for module, site in sites(unet) if site.leads}
        found = {module: (planner.known[0], planner.order) for module, planner in leading.items()}
    pairs = [(last, call) for last, call in zip(before, after, strict=True) if call.module in found]
    assert len(pairs) == len(found)
    for last, call in pairs:
        known, order = found[call.module]
        merge, unmerge = dense(call.plan, call.tokens)
        expected = last.tokens + unmerge @ merge @ (call.tokens - last.tokens)
        assert torch.allclose(known, expected if order is None else order.restore(expected), **CLOSE)
        rows = kept_rows(call.plan)
        assert torch.allclose(expected[:, rows[0]], call.tokens[:, rows[0]], **CLOSE), "destinations are known exactly"


def test_what_did_not_change_is_not_computed() -> None:
    """Half of every tile changes: it is what is chosen, and next to nothing is left to be told."""
    planner = Planner(ToMA(0.5), FRESH, Moment(dice=Dice(0)), level=0)
    planner.grid, planner.carries = Grid(8, 8), True
    tokens = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(0))
    planner.note(tokens)
    left = (torch.arange(64) % 4 < 2)[None, :, None]  # the left half of every 4×4 tile
    moved = tokens + left * torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(1))
    plan = planner.current(moved)
    assert plan.destinations[0].sort().values.tolist() == left[0, :, 0].nonzero()[:, 0].tolist()
    assert (planner.known[0] - moved).norm() < 0.01 * (moved - tokens).norm()


def test_what_is_known_goes_with_the_answers(unet: nn.Module) -> None:
    with tomadiff.apply(unet, 0.5, schedule=Schedule(1, 1, stop=2)) as patch:
        draw(patch, unet, [inputs(0)])
        assert all(planner.known for planner in planners(unet))
        patch.begin()
        patch.step(2)
        run(unet, inputs(1))
        assert not any(planner.known for planner in planners(unet))


# ---------------------------------------------------------------------------------------------- few steps
def test_few_steps_of_a_unet_get_fresh_plans(unet: nn.Module) -> None:
    with tomadiff.apply(unet, 0.5) as patch:
        for steps, carries in ((4, False), (9, False), (10, True), (8, False)):
            patch.begin(steps=steps)
            run(unet, inputs(0))
            assert any(site.last for _, site in sites(unet)) == carries
            assert all(planner.method.carries == carries for planner in planners(unet))
        assert planners(unet)[0].method == ToMA(
            0.5, carry=False, selector="facility_location", merging="average", unmerge="least-squares"
        )


@pytest.mark.parametrize("carry", [True, False])
def test_who_insists_on_carrying_or_not_is_heard(unet: nn.Module, carry: bool) -> None:
    with tomadiff.apply(unet, 0.5, carry=carry) as patch:
        for steps in (4, 20):
            patch.begin(steps=steps)
            run(unet, inputs(0))
            assert any(site.last for _, site in sites(unet)) == carry


def test_settings_of_ones_own_survive_few_steps() -> None:
    assert ToMA(0.5, selector="strided", temperature=0.1).fresh() == ToMA(
        0.5, selector="strided", temperature=0.1, carry=False, merging="average", unmerge="least-squares"
    )
    assert ToMA.paper(0.5).fresh() == ToMA.paper(0.5)


def test_transformers_carry_with_few_steps() -> None:
    one = families.TestFlux()
    model = one.model()
    with tomadiff.apply(model, 0.5, skip=0) as patch:
        patch.begin(steps=4)
        one.run(model, **one.inputs(8, 8, (0,)))
        assert any(site.last for _, site in sites(model))


@pytest.mark.parametrize("scope", ["block", "stack", "level"])
def test_joint_blocks_of_flux_are_spared_instead_of_skipped(scope: Any) -> None:
    def kept(ratio: float, **settings: Any) -> dict[str, int | None]:
        with tomadiff.apply(model, ratio, scope=scope, schedule=FRESH, guard=False, **settings) as patch:
            one.run(model, **one.inputs(8, 8, (0,)))
            plans = {site.name.partition(".")[0]: site.slot for _, site in sites(model)}
            assert patch.report().models[0].skipped_blocks == (0 if settings.get("carry") is None else 1)
            return {stack: slot.plan.kept if slot.active and slot.plan else None for stack, slot in plans.items()}

    one = families.TestFlux()
    model = one.model()
    assert kept(0.5) == {"transformer_blocks": 48, "single_transformer_blocks": 32}
    assert kept(0.25) == {"transformer_blocks": None, "single_transformer_blocks": 48}
    assert kept(0.5, skip=0) == {"transformer_blocks": 32, "single_transformer_blocks": 32}
    assert kept(0.5, carry=False) == {"transformer_blocks": 32, "single_transformer_blocks": 32}


# ---------------------------------------------------------------------------------------------- where a picture begins
def test_the_first_merged_call_carries_nothing(unet: nn.Module) -> None:
    steps = [inputs(0), inputs(1)]
    with tomadiff.apply(unet, ToMA(0.5), schedule=FRESH) as patch:
        first, second = draw(patch, unet, steps)
    with tomadiff.apply(unet, ToMA(0.5, carry=False), schedule=FRESH) as patch:
        plain_first, plain_second = draw(patch, unet, steps)
    assert torch.equal(first, plain_first)
    assert not torch.allclose(second, plain_second, **CLOSE)


def test_a_picture_starts_afresh(unet: nn.Module) -> None:
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        first = draw(patch, unet, [inputs(0), inputs(1)])
        draw(patch, unet, [inputs(7), inputs(8), inputs(9)])
        assert all(map(torch.equal, draw(patch, unet, [inputs(0), inputs(1)]), first))


def test_nothing_outlives_the_patch(unet: nn.Module) -> None:
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        draw(patch, unet, [inputs(0)])
        found = [site for _, site in sites(unet)]
        assert all(site.last for site in found)
        patch.set(ratio=0.25)
        assert not any(site.last for _, site in sites(unet))


# ---------------------------------------------------------------------------------------------- unmerged first steps
@pytest.mark.parametrize("span", ["op", "block"])
@pytest.mark.parametrize(
    ("regions", "arranged"), [(ToMA().regions, True), (Stripes(16), False)], ids=["tiles", "stripes"]
)
def test_unmerged_steps_leave_answers_to_go_on_from(unet: nn.Module, span: Any, regions: Any, arranged: bool) -> None:
    plain = run(unet, inputs(0))
    method = ToMA(0.5, span=span, regions=regions)
    with tomadiff.apply(unet, method, schedule=Schedule(1, 1, start=1)) as patch:
        before, after = watched(patch, unet, [inputs(0), inputs(1)])
        assert {site.slot.order is not None for _, site in sites(unet)} == {arranged}
        unmerged, _ = draw(patch, unet, [inputs(0), inputs(1)])
    assert torch.allclose(unmerged, plain, **CLOSE)
    check(UNET, after, before)


@pytest.mark.parametrize("span", ["op", "block"])
def test_the_order_of_tokens_does_not_matter(unet: nn.Module, span: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, schedule = [inputs(seed, batch=2) for seed in range(4)], Schedule(1, 1, start=1, stop=3)
    with tomadiff.apply(unet, 0.5, span=span, schedule=schedule) as patch:
        arranged = draw(patch, unet, steps)
        assert all(site.slot.order is not None for _, site in sites(unet))
    monkeypatch.setattr(tomadiff.patched.Gates, "fit", staticmethod(lambda _: False))
    with tomadiff.apply(unet, 0.5, span=span, schedule=schedule) as patch:
        raster = draw(patch, unet, steps)
        assert all(site.slot.order is None for _, site in sites(unet))
    for one, other in zip(arranged, raster, strict=True):
        assert torch.allclose(one, other, **CLOSE)


def test_answers_in_another_order_are_not_gone_on_from(unet: nn.Module) -> None:
    """An attention processor of somebody's own, set in the middle of a picture, may ask for raster order."""

    class Mine(type(next(iter(unet.attn_processors.values())))):  # type: ignore[misc,operator]
        pass

    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        (before,) = watched(patch, unet, [inputs(0)])
        unet.set_attn_processor(Mine())
        patch.step(1)
        between = recorded(unet, lambda: run(unet, inputs(1)))
        assert {site.slot.order for _, site in sites(unet)} == {None}
    assert len(before) == len(between)
    check(UNET, between)


# ---------------------------------------------------------------------------------------------- what does not fit
@pytest.mark.parametrize(
    "change", [inputs(1, batch=1), inputs(1, side=8), inputs(1, batch=4)], ids=["fewer", "smaller", "more"]
)
def test_after_a_change_of_size_answers_are_unmerged_as_they_are(unet: nn.Module, change: Inputs) -> None:
    steps = [inputs(0, batch=2), change, change | {"sample": change["sample"] + 0.1}]
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        _, changed, after = watched(patch, unet, steps)
    check(UNET, changed)
    check(UNET, after, changed)


def test_a_grid_of_other_sides_and_as_many_tokens_is_another_picture(unet: nn.Module) -> None:
    tall, wide = (UNET.inputs(*size) for size in ((8, 32), (32, 8)))
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        _, turned = watched(patch, unet, [tall, wide])
    check(UNET, turned)


@pytest.mark.parametrize(("dim", "size"), [(0, 1), (1, 16)])
def test_chunked_feed_forward_in_the_middle_of_a_picture(unet: nn.Module, dim: int, size: int) -> None:
    def feed_forward(calls: list[SiteCall]) -> list[SiteCall]:
        return [call for call in calls if type(call.module).__name__ == "FeedForward"]

    def chunk(size: int | None) -> None:
        for module in unet.modules():
            if isinstance(module, BasicTransformerBlock):
                module.set_chunk_feed_forward(size, dim)

    def steps() -> Iterable[Inputs]:
        for step, chunks in enumerate((None, size, None, None)):
            chunk(chunks)
            yield inputs(step, batch=2)

    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        _, pieces, whole, after = map(feed_forward, watched(patch, unet, steps()))
    assert len(pieces) >= 2 * len(whole)
    for piece in pieces:
        with torch.no_grad():
            assert torch.equal(type(piece.module).forward(piece.module, piece.tokens), piece.outputs[0])
    check(UNET, whole)
    check(UNET, after, whole)


def test_another_dtype_in_the_middle_of_a_picture(unet: nn.Module) -> None:
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        draw(patch, unet, [inputs(0)])
        patch.step(1)
        with torch.autocast("cpu", torch.bfloat16):
            result = run(unet, inputs(1))
        assert result.isfinite().all()
        assert {answer.dtype for _, site in sites(unet) for answer in site.last.values()} == {torch.bfloat16}


# ---------------------------------------------------------------------------------------------- what is not held
def test_while_weights_learn_nothing_is_held(unet: nn.Module) -> None:
    with tomadiff.apply(unet, 0.5, schedule=FRESH):
        assert unet(**inputs())[0].requires_grad
        assert not any(site.last for _, site in sites(unet))


@pytest.mark.parametrize("learned", ["sample", "encoder_hidden_states"])  # the latter as textual inversion does
def test_while_an_input_learns_no_graph_is_held(unet: nn.Module, learned: str) -> None:
    unet.requires_grad_(False)
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        patch.begin()
        for step in range(2):
            patch.step(step)
            given = inputs(step)
            given[learned].requires_grad_()
            result = unet(**given)[0]
            held = [answer for _, site in sites(unet) for answer in site.last.values()]
            assert not any(answer.requires_grad for answer in held)
            result.sum().backward()  # of this step alone: the graph of the one before is gone
            assert given[learned].grad.any()


def test_without_carry_nothing_is_held(unet: nn.Module) -> None:
    def held(carry: bool) -> int:
        with tomadiff.apply(unet, 0.5, carry=carry, schedule=FRESH) as patch:
            draw(patch, unet, [inputs(0), inputs(1)])
            assert any(site.last for _, site in sites(unet)) == carry
            return sum(level.bytes_held for level in patch.report().models[0].levels)

    gave = 4 * sum(call.outputs[0].numel() for call in _calls_of_one_step(unet))
    given = gave // 3  # every block has three ops, and one input that its plan is made from
    assert held(carry=True) - held(carry=False) == gave + given


def _calls_of_one_step(unet: nn.Module) -> list[SiteCall]:
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        (calls,) = watched(patch, unet, [inputs(0)])
    return calls


# ---------------------------------------------------------------------------------------------- passes of a step
def test_guidance_passes_of_their_own_calls_carry_their_own(unet: nn.Module) -> None:
    """The same picture twice a step, with another text each time."""
    seen: dict[tuple[int, int], list[SiteCall]] = {}
    with tomadiff.apply(unet, 0.5, schedule=FRESH) as patch:
        patch.begin()
        for step in range(2):
            patch.step(step)
            for turn in range(2):
                given = inputs(step) | {"encoder_hidden_states": torch.full((1, 5, 32), float(turn))}
                seen[step, turn] = recorded(unet, lambda given=given: run(unet, given))
    for turn in range(2):
        check(UNET, seen[0, turn])
        check(UNET, seen[1, turn], seen[0, turn])
    guided, of_other = seen[1, 1][-1], seen[0, 0][-1]
    assert not are_close(answers(guided), by_hand(UNET, guided, of_other))
