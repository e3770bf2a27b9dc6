"""Runs leave nothing behind: not in the model, not in the node, not in memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from tomadiff.merging.plan import Plan
from tomadiff.steps.history import PassHistory

from . import host as host
from . import tiny

import comfy.model_management  # isort: skip
import comfy.sd

from .test_merging import accelerated, far, flux, sdxl, summary

_FIXTURES = sdxl, flux  # used by their names


def attributes(model: Any) -> dict[str, set[str]]:
    return {name: set(module.__dict__) for name, module in model.model.named_modules()}


@pytest.fixture
def untouched(sdxl: Any) -> Any:
    """Fails if a run leaves anything on the model, or changes what it gives."""
    model, _, positive, negative = sdxl
    tiny.sample(model, positive, negative)  # what ComfyUI itself notes at the first run
    before, plain = attributes(model), tiny.sample(model, positive, negative)
    yield
    assert attributes(model) == before
    assert torch.equal(tiny.sample(model, positive, negative), plain)


@pytest.mark.usefixtures("untouched")
def test_two_clones_with_other_settings_are_independent(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    few, many = accelerated(model, 0.25, 0.2), accelerated(model, 0.75)
    first, second = tiny.sample(few, positive, negative), tiny.sample(many, positive, negative)
    assert far(first, second) > 1e-4
    assert torch.equal(tiny.sample(few, positive, negative), first)
    assert torch.equal(tiny.sample(many, positive, negative), second)
    assert "25.0%" in summary(few)
    assert "75.0%" in summary(many)
    clone = few.clone()  # as a node for LoRA makes one
    assert summary(clone) == summary(few)
    tiny.sample(clone, positive, negative, size=(24, 24))
    assert summary(clone) != summary(few)


@pytest.mark.usefixtures("untouched")
def test_a_second_node_replaces_the_first(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    again = accelerated(accelerated(model, 0.25), 0.75)
    assert torch.equal(
        tiny.sample(again, positive, negative), tiny.sample(accelerated(model, 0.75), positive, negative)
    )


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("problem", [RuntimeError, comfy.model_management.InterruptProcessingException])
def test_an_exception_in_the_middle_of_a_run(sdxl: Any, problem: type[Exception]) -> None:
    model, _, positive, negative = sdxl
    ours = accelerated(model, 0.5, 0.2)
    expected = tiny.sample(ours, positive, negative, steps=12)

    def stop(step: int, *_: Any) -> None:
        if step == 6:
            raise problem("stop")

    with pytest.raises(problem):
        tiny.sample(ours, positive, negative, steps=12, callback=stop)
    assert torch.equal(tiny.sample(ours, positive, negative, steps=12), expected)


@pytest.mark.usefixtures("untouched")
def test_an_exception_inside_of_a_block(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    ours = accelerated(model, 0.5)

    def stop(*_: Any) -> None:
        raise RuntimeError("stop")

    handle = model.model.diffusion_model.output_blocks[-1][0].register_forward_pre_hook(stop)
    with pytest.raises(RuntimeError):
        tiny.sample(ours, positive, negative)
    handle.remove()


@pytest.mark.usefixtures("untouched")
def test_memory_is_given_back(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    ours = accelerated(model, 0.5, 0.2)
    tiny.sample(ours, positive, negative, steps=12)
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, Plan | PassHistory)]
    assert left == []


@pytest.mark.usefixtures("untouched")
def test_a_run_inside_of_a_run(sdxl: Any) -> None:
    """Nodes may sample with a clone in the middle of a run; the model of this one merges otherwise, or not at all."""
    model, _, positive, negative = sdxl
    outer = accelerated(model, 0.5)
    expected, plain = tiny.sample(outer, positive, negative), tiny.sample(model, positive, negative)
    inner = accelerated(model, 0.75)
    of_inner = tiny.sample(inner, positive, negative)
    seen = []

    def nested(step: int, *_: Any) -> None:
        if step == 2:
            current = model.model.current_patcher
            seen.append(tiny.sample(model, positive, negative))
            seen.append(tiny.sample(inner, positive, negative))
            model.model.current_patcher = current

    assert torch.equal(tiny.sample(outer, positive, negative, callback=nested), expected)
    assert torch.equal(seen[0], plain)
    assert torch.equal(seen[1], of_inner)


@pytest.mark.usefixtures("untouched")
def test_patches_of_other_nodes_are_called(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    calls: list[str] = []

    def halved(n: Any, context: Any, value: Any, _: Any) -> Any:
        calls.append("patch")
        return n * 0.5, context, value

    def replaced(q: Any, k: Any, v: Any, options: Any) -> Any:
        calls.append("replace")
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    patched = model.clone()
    patched.set_model_attn1_patch(halved)
    for number in range(9):
        patched.set_model_attn2_replace(replaced, "input", number)
    without = tiny.sample(patched, positive, negative)
    count = len(calls)
    for ours in (accelerated(patched, 0.5), accelerated(patched, 0.0)):
        calls.clear()
        tiny.sample(ours, positive, negative)
        assert len(calls) == count
    assert torch.equal(tiny.sample(accelerated(patched, 0.0), positive, negative), without)
    later = accelerated(model, 0.5).clone()
    later.set_model_attn1_patch(halved)
    first = accelerated(model.clone(), 0.5)
    first.set_model_attn1_patch(halved)
    assert torch.equal(tiny.sample(later, positive, negative), tiny.sample(first, positive, negative))


@pytest.mark.usefixtures("untouched")
def test_a_lora(sdxl: Any) -> None:
    model, _, positive, negative = sdxl
    weights = model.model.state_dict().items()
    name, weight = next((name, weight) for name, weight in weights if name.endswith("attn1.to_q.weight"))
    torch.manual_seed(0)
    loras = {name: ("diff", (torch.randn_like(weight),))}

    def with_lora(patcher: Any) -> Any:
        clone = patcher.clone()
        clone.add_patches(loras, 1.0)
        return clone

    plain = tiny.sample(with_lora(model), positive, negative)
    before, after = with_lora(accelerated(model, 0.5)), accelerated(with_lora(model), 0.5)
    merged = tiny.sample(before, positive, negative)
    assert far(merged, plain) > 1e-4
    assert torch.equal(tiny.sample(after, positive, negative), merged)
    assert far(tiny.sample(accelerated(model, 0.5), positive, negative), merged) > 1e-4, "the LoRA has an effect"
    assert torch.equal(tiny.sample(accelerated(with_lora(model), 0.0), positive, negative), plain)


def test_images_to_edit_from_stay_whole(flux: Any) -> None:
    model, _, positive = flux
    (text, others), *_ = positive
    torch.manual_seed(0)
    editing = [[text, {**others, "reference_latents": [torch.randn(1, 4, 24, 24), torch.randn(1, 4, 16, 32)]}]]
    plain = tiny.sample(model, editing, editing, cfg=1.0)
    assert far(plain, tiny.sample(model, positive, positive, cfg=1.0)) > 1e-4
    ours = accelerated(model, 0.5)
    assert far(tiny.sample(ours, editing, editing, cfg=1.0), plain) > 1e-4
    assert "256 → 128" in summary(ours)
    assert "unmerged: " not in summary(ours)
    assert torch.equal(tiny.sample(accelerated(model, 0.0), editing, editing, cfg=1.0), plain)


@pytest.mark.usefixtures("untouched")
def test_a_controlnet(sdxl: Any) -> None:
    """It steers merged images too, and is not called at forecast steps."""
    model, _, positive, negative = sdxl
    control, net = tiny.controlnet(model)
    torch.manual_seed(0)
    hinted = control.copy().set_cond_hint(torch.rand(1, 3, 256, 256), 0.5, (0.0, 0.7))
    calls: list[int] = []
    net.register_forward_pre_hook(lambda *_: calls.append(1))

    def steered(condition: list[Any]) -> list[Any]:
        (text, others), *_ = condition
        return [[text, {**others, "control": hinted, "control_apply_to_uncond": False}]]

    both = steered(positive), steered(negative)
    plain = tiny.sample(model, *both, steps=16)
    assert far(plain, tiny.sample(model, positive, negative, steps=16)) > 1e-4
    full = len(calls)
    calls.clear()
    merged = tiny.sample(accelerated(model, 0.5), *both, steps=16)
    assert len(calls) == full
    assert far(merged, plain) > 1e-4
    assert far(merged, tiny.sample(accelerated(model, 0.5), positive, negative, steps=16)) > 1e-4
    calls.clear()
    tiny.sample(accelerated(model, 0.0, 0.5), *both, steps=16)
    assert len(calls) < full
    assert torch.equal(tiny.sample(accelerated(model, 0.0, 0.0), *both, steps=16), plain)
