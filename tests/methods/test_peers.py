"""ToFu, ToDo, the speed limit, and the catalogue that names them all."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny
from tomadiff import Bound, Grid, ToDo, ToFu, ToMA, apply
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.methods.registry import CATALOGUE, named


# ------------------------------------------------------------------------------ ToFu
def test_tofu_prunes_early_and_merges_late() -> None:
    tokens, grid = torch.randn(2, 64, 8), Grid(8, 8)
    early, late = (ToFu(0.5, random=False).plan(tokens, grid, depth=depth) for depth in (0.1, 0.9))
    assert torch.equal(early.merge(tokens), tokens.gather(1, early.stay[..., None].expand(-1, -1, 8)))
    assert not torch.allclose(late.merge(tokens), early.merge(tokens))


def test_mlerp_keeps_the_largest_norm() -> None:
    tokens = torch.randn(1, 64, 8)
    plan = ToFu(0.5, prune=0.0, random=False).plan(tokens, Grid(8, 8))
    norms, merged = tokens.norm(dim=-1)[0], plan.merge(tokens)[0]
    for place in range(plan.kept):
        members = [int(plan.stay[0, place]), *plan.sources[0, plan.targets[0] == place].tolist()]
        assert merged[place].norm().item() == pytest.approx(norms[members].max().item(), rel=1e-5)
        mean = tokens[0, members].mean(0)
        assert torch.cosine_similarity(mean, merged[place], dim=0).item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("share", [-0.1, 2, True])
def test_the_share_that_prunes_is_checked(share: Any) -> None:
    with pytest.raises(SettingError, match="share of the blocks"):
        ToFu(0.5, prune=share)


# ------------------------------------------------------------------------------ ToDo
@pytest.mark.parametrize(("height", "width", "factor"), [(8, 8, 2), (7, 9, 2), (5, 1, 2), (9, 16, 3), (1, 1, 2)])
def test_todo_thins_out_any_grid(height: int, width: int, factor: int) -> None:
    plan = ToDo(factor=factor).plan(torch.randn(1, height * width, 4), Grid(height, width))
    assert plan.kept == -(-height // factor) * -(-width // factor)
    rows, columns = plan.index[0] // width, plan.index[0] % width
    assert ((rows % factor == 0) & (columns % factor == 0)).all()
    assert torch.equal(plan.unmerge(plan.merge(torch.arange(height * width).view(1, -1, 1)))[0, 0, 0], plan.index[0, 0])


@pytest.mark.parametrize("family", ["sd15", "sdxl", "pixart"])
def test_todo_is_attention_on_fewer_keys(family: str) -> None:
    """Against the same module called with the thinned tokens as its context."""
    drawn = tiny.build(family)
    patch = apply(drawn.pipe, ToDo())
    seen: list[tuple[Any, ...]] = []
    module = patch._models[0].sites[0][0]
    handle = module.register_forward_hook(
        lambda module, args, kwargs, out: seen.append((args, kwargs, out)), with_kwargs=True
    )
    drawn.draw()
    args, kwargs, out = seen[-1]
    patch.remove()
    handle.remove()
    grid = patch.report().models[0].levels[0]
    side = int(grid.tokens_before**0.5)
    few = args[0].view(args[0].shape[0], side, side, -1)[:, ::2, ::2].flatten(1, 2)
    with torch.no_grad():
        expected = module(args[0], **{**kwargs, "encoder_hidden_states": few})
    assert torch.allclose(out, expected, atol=1e-5)
    assert grid.tokens_after == grid.tokens_before // 4


@pytest.mark.parametrize("family", ["flux", "sd3"])
def test_joint_attention_of_our_own_equals_the_models(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all keys kept, the written-out attention is the model's own: text, image, rotary positions, both kinds."""
    drawn = tiny.build(family)
    base = drawn.draw()
    plain = ToDo.plan

    def all_keys(self: ToDo, tokens: torch.Tensor, grid: Grid, **settings: Any) -> Any:
        plan = plain(self, tokens, grid, **settings)
        plan.index = torch.arange(grid.tokens)[None]
        return plan

    with monkeypatch.context() as change:
        change.setattr(ToDo, "plan", all_keys)
        with apply(drawn.pipe, ToDo()) as patch:
            assert torch.allclose(drawn.draw(), base, atol=1e-5)
            assert not patch.report().models[0].bypassed
    with apply(drawn.pipe, ToDo()):
        thinned = drawn.draw()
        assert thinned.isfinite().all()
        assert not torch.allclose(thinned, base, atol=1e-5)
    assert torch.equal(drawn.draw(), base)


def test_todo_says_where_it_does_not_work() -> None:
    with pytest.raises(UnsupportedModelError, match="ToDo does not work on Wan"):
        apply(tiny.build("wan").pipe, ToDo())
    with pytest.raises(SettingError, match="keys and values"):
        ToDo(merge_feed_forward=True)
    with pytest.raises(SettingError, match="factor"):
        ToDo(factor=1)


# ------------------------------------------------------------------------------ bound, catalogue
def test_bound_has_tomas_shapes_and_no_choices() -> None:
    tokens, grid = torch.randn(2, 64, 8), Grid(8, 8)
    bound, toma = Bound(0.5).plan(tokens, grid), ToMA(0.5).plan(tokens, grid)
    assert [tensor.shape for tensor in bound.state] == [tensor.shape for tensor in toma.state]
    assert torch.equal(bound.merge_matrix, Bound(0.5).plan(torch.zeros_like(tokens), grid).merge_matrix)


@lru_cache
def unmerged(family: str) -> tuple[tiny.Tiny, Tensor]:
    """A pipeline and what it draws: every method must leave it as it was, so one serves all."""
    drawn = tiny.build(family)
    drawn.steps = 2
    return drawn, drawn.draw()


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_method_on_every_family_it_claims(name: str, family: str) -> None:
    drawn, base = unmerged(family)
    method, schedule = named(name, 0.5)
    if method.families is not None and family not in ("sd15", "sdxl", *method.families):
        with pytest.raises(UnsupportedModelError, match="does not work on"):
            apply(drawn.pipe, method, schedule=schedule)
        return
    with apply(drawn.pipe, method, schedule=schedule) as patch:
        merged = drawn.draw()
        report = patch.report().models[0]
        assert report.merged
        assert not report.bypassed
    assert merged.isfinite().all()
    assert not torch.equal(merged, base)
    assert torch.equal(drawn.draw(), base)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(SettingError, match="'tomesd'"):
        named("tome")
