"""Proportional attention: keys of merged tokens count for as many tokens as they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tomadiff
from tests import tiny
from tomadiff import Schedule, ToMA, Whole
from tomadiff.engine.discover import for_family
from tomadiff.families.registry import family_of


def drawn(drawer: Any, method: ToMA) -> torch.Tensor:
    with tomadiff.apply(drawer.pipe, method, schedule=Schedule(1, 1), guard=False):
        result: torch.Tensor = drawer.draw(num_inference_steps=2, output_type="latent")
    return result


def masks(drawer: Any, method: ToMA) -> list[torch.Tensor]:
    """What attention is given for a mask, call by call."""
    seen: list[torch.Tensor] = []
    model = drawer.model
    hooks = [
        block.attn.register_forward_pre_hook(
            lambda _, __, given: (
                seen.append(given["attention_mask"]) if given.get("attention_mask") is not None else None
            ),
            with_kwargs=True,
        )
        for block in (*model.transformer_blocks, *model.single_transformer_blocks)
    ]
    drawn(drawer, method)
    for hook in hooks:
        hook.remove()
    return seen


def test_flux_gets_shared_quotas_and_proportional_attention_by_default() -> None:
    flux, unet = (family_of(tiny.build(name).model) for name in ("flux", "sdxl"))
    assert (for_family(ToMA(), flux).quota, for_family(ToMA(), flux).is_proportional) == ("shared", True)
    assert (for_family(ToMA(), unet).quota, for_family(ToMA(), unet).is_proportional) == (None, False)
    own = for_family(ToMA(quota="equal", proportional=False), flux)
    assert (own.quota, own.proportional, own.share) == ("equal", False, "batch")
    assert for_family(ToMA.paper(), flux) == ToMA.tile(share="batch")


@pytest.mark.parametrize(
    "method", [ToMA(0.5, skip=0, selector="random"), ToMA(0.5, skip=0, attention_regions=Whole())], ids=str
)
def test_quotas_stay_equal_where_they_cannot_be_shared(method: ToMA) -> None:
    drawer = tiny.build("flux")
    assert for_family(method, family_of(drawer.model)).quota is None
    assert drawn(drawer, method).isfinite().all()


def test_keys_are_weighed_by_their_sizes() -> None:
    drawer = tiny.build("flux")
    seen = masks(drawer, ToMA(0.5, skip=0))
    assert seen
    assert all(mask.dim() == 4 and (mask.shape[1], mask.shape[2]) == (1, 1) for mask in seen)
    with tomadiff.apply(drawer.pipe, ToMA(0.5, skip=0), guard=False) as patch:
        drawer.draw(num_inference_steps=1, output_type="latent")
        (plan, *_) = patch.plans().values()
    text = seen[0].shape[-1] - plan.kept
    assert torch.equal(seen[0][..., :text], torch.zeros_like(seen[0][..., :text])), "text counts once"
    total = seen[0][..., text:].exp().sum(-1)
    assert torch.allclose(total, torch.full_like(total, float(plan.tokens)), rtol=1e-3), "all tokens are stood for"
    assert not masks(drawer, ToMA(0.5, skip=0, proportional=False))


@pytest.mark.parametrize("scope", ["block", "level"])
def test_it_changes_the_image_and_is_taken_off(scope: Any) -> None:
    drawer = tiny.build("flux")
    before = drawer.draw(num_inference_steps=2, output_type="latent")
    weighed, plain = (drawn(drawer, ToMA(0.5, skip=0, scope=scope, proportional=own)) for own in (True, False))
    assert not torch.equal(weighed, plain)
    assert torch.equal(drawer.draw(num_inference_steps=2, output_type="latent"), before)


def test_backends_that_take_no_mask_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tomadiff.engine.model.attention_backend", lambda _: "flash")
    assert not masks(tiny.build("flux"), ToMA(0.5, skip=0))
