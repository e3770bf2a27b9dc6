"""``ToMA.paper`` and its variants against the NumPy re-implementation, on both embedded pipelines.

The library generates an image. Then the reference does, from the same noise, with layers of the untouched model and
merging of its own; before every step it is given the library's latents, so that all steps can be compared one by one.
Where the best destination is a matter of rounding, it takes the library's, and records what that costs.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import paper_reference
from tests.paper_reference import VARIANTS, Merger, Variant
from tomadiff import ToMA, embedded

PIPELINES = ("emoji-sdxl", "emoji-flux")
STEPS = 20
RATIO = 0.5
AGREE = 1e-5
LATER = 5e-4  # the last steps amplify the rounding of float32; the largest difference seen was 1.5e-4


def as_array(tokens: Tensor) -> np.ndarray:
    return tokens.detach().double().numpy()


def as_tokens(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.dtype)


@dataclass
class Reference:
    """Puts the NumPy merger around the layers of a model, by exchanging their ``forward``."""

    variant: Variant
    given: dict[int, dict[int, np.ndarray]]  # the library's destinations, by tokens of the grid and step
    step: int = 0
    mergers: dict[int, Merger] = field(default_factory=dict)

    def at(self, tokens: Tensor) -> Merger:
        count = tokens.shape[1]
        if count not in self.mergers:
            side = round(count**0.5)
            assert side * side == count  # images of the embedded pipelines are square
            self.mergers[count] = Merger(self.variant, side, side, RATIO, self.given[count].__getitem__)
        return self.mergers[count]

    def around_op(self, op: Any, rotary: bool = False) -> Any:
        """``unmerge(op(merge(x)))``; of joint attention, the text passes."""

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            merger = self.at(hidden_states)
            merger.see(as_array(hidden_states), self.step)
            if rotary:
                kwargs["image_rotary_emb"] = self.picked(merger, hidden_states, kwargs["image_rotary_emb"])
            merged = as_tokens(merger.merge(as_array(hidden_states)), hidden_states)
            result = op(merged, *args, **kwargs)
            if isinstance(result, tuple):  # (image, text)
                return (as_tokens(merger.unmerge(as_array(result[0])), merged), *result[1:])
            return as_tokens(merger.unmerge(as_array(result)), merged)

        return forward

    def around_block(self, block: Any, rotary: bool = False) -> Any:
        """``x + unmerge(block(m) − m)`` with ``m = merge(x)``; the plan is made after a norm, as ops would see it."""

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            merger, tokens = self.at(hidden_states), as_array(hidden_states)
            centred = tokens - tokens.mean(-1, keepdims=True)
            merger.see(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5), self.step)
            if rotary:
                kwargs["image_rotary_emb"] = self.picked(merger, hidden_states, kwargs["image_rotary_emb"])
            merged = as_tokens(merger.merge(tokens), hidden_states)
            result = block(merged, *args, **kwargs)
            text, image = result if isinstance(result, tuple) else (None, result)
            image = as_tokens(tokens + merger.unmerge(as_array(image) - as_array(merged)), merged)
            return image if text is None else (text, image)

        return forward

    def picked(self, merger: Merger, image: Tensor, tables: Any) -> Any:
        """Rotary rows of the text, then those of the destinations."""
        text = tables[0].shape[0] - image.shape[1]
        rows = torch.from_numpy(np.concatenate([np.arange(text), text + merger.destinations]))
        return tuple(table[rows] for table in tables)

    @contextmanager
    def on(self, pipe: Any) -> Any:
        with ExitStack() as stack:
            for module, around in self.layers(pipe):
                module.forward = around
                stack.callback(module.__dict__.pop, "forward")
            yield

    def layers(self, pipe: Any) -> list[tuple[nn.Module, Any]]:
        if hasattr(pipe, "unet"):
            blocks = [one for one in pipe.unet.modules() if type(one).__name__ == "BasicTransformerBlock"]
            if self.variant.span == "block":
                return [(block, self.around_block(block.forward)) for block in blocks]
            return [(op, self.around_op(op.forward)) for block in blocks for op in (block.attn1, block.attn2, block.ff)]
        joint, single = pipe.transformer.transformer_blocks, pipe.transformer.single_transformer_blocks
        skipped = round(10 / 57 * (len(joint) + len(single)))  # the paper's share of Flux.1
        layers = [(block, self.around_block(block.forward, rotary=True)) for block in single]
        for block in joint[skipped:]:
            if self.variant.span == "block":
                layers.append((block, self.around_block(block.forward, rotary=True)))
            else:
                layers.append((block.attn, self.around_op(block.attn.forward, rotary=True)))
                layers.append((block.ff, self.around_op(block.ff.forward)))
        return layers


@dataclass
class Run:
    """Latents after every step, and the destinations that were in use, by tokens of the grid and step."""

    latents: list[Tensor] = field(default_factory=list)
    destinations: dict[int, dict[int, np.ndarray]] = field(default_factory=lambda: defaultdict(dict))


def generated(pipe: Any, name: str, stop: int, after_step: Any) -> None:
    """Generate one image, as far as step ``stop``."""

    def callback(pipe: Any, step: int, _: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
        latents = after_step(step, values["latents"])
        if step + 1 == stop:
            pipe._interrupt = True
        return {"latents": latents}

    settings = embedded.settings(name) | {"num_inference_steps": STEPS}
    generator = torch.Generator().manual_seed(7)
    pipe("a fox on a blue background", **settings, generator=generator, output_type="latent",
         callback_on_step_end=callback)  # fmt: skip


def by_library(pipe: Any, name: str, method: ToMA, stop: int) -> Run:
    run = Run()

    def noted(_: str, group: Any, tokens: Tensor) -> None:
        chosen = group.last.destinations
        assert bool((chosen == chosen[:1]).all())  # both guidance passes
        run.destinations[tokens.shape[1]][group.context.info.step] = chosen[0].numpy()

    def after_step(step: int, latents: Tensor) -> Tensor:
        run.latents.append(latents.clone())
        return latents

    with tomadiff.apply(pipe, method, guard=False) as patch:
        patch.watch(noted)
        generated(pipe, name, stop, after_step)
    return run


def compared(
    pipe: Any, name: str, variant: str, stop: int, method: ToMA | None = None
) -> tuple[list[float], Reference]:
    """How far latents differ after each step, and the reference with what it found about destinations."""
    run = by_library(pipe, name, method or getattr(ToMA, variant)(RATIO), stop)
    reference, differences = Reference(VARIANTS[variant], {}), []
    for tokens, by_step in run.destinations.items():
        regions = len(VARIANTS[variant].regions(round(tokens**0.5), round(tokens**0.5)))
        reference.given[tokens] = {step: chosen.reshape(regions, -1) for step, chosen in by_step.items()}

    def after_step(step: int, latents: Tensor) -> Tensor:
        differences.append(float((latents - run.latents[step]).abs().max()))
        reference.step = step + 1
        return run.latents[step].clone()

    with reference.on(pipe):
        generated(pipe, name, stop, after_step)
    return differences, reference


@pytest.fixture(scope="module")
def pipes() -> dict[str, Any]:
    return {name: embedded.load(name) for name in PIPELINES}


def worst_pick(reference: Reference) -> float:
    return max(shortfall for merger in reference.mergers.values() for shortfall in merger.shortfalls)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PIPELINES)
def test_the_first_step_is_that_of_the_reference(pipes: dict[str, Any], name: str, variant: str) -> None:
    differences, reference = compared(pipes[name], name, variant, stop=1)
    assert max(differences) <= AGREE
    assert worst_pick(reference) <= AGREE


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_of_a_run_is_that_of_the_reference(pipes: dict[str, Any], name: str, variant: str) -> None:
    differences, reference = compared(pipes[name], name, variant, stop=STEPS)
    print(f"{name} {variant}: latents {max(differences):.1e}, worst pick {worst_pick(reference):.1e}")
    assert len(differences) == STEPS
    assert differences[0] <= AGREE
    assert max(differences) <= LATER
    assert worst_pick(reference) <= AGREE
    assert {merger.selected_at for merger in reference.mergers.values()} == {10}
    assert {merger.weighed_at for merger in reference.mergers.values()} == {15}


def test_another_temperature_would_be_noticed(pipes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_reference, "TEMPERATURE", 1.1e-3)
    differences, _ = compared(pipes["emoji-flux"], "emoji-flux", "paper", stop=1)
    assert max(differences) > 10 * AGREE
