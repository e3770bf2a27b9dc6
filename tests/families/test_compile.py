"""Compiled models: the same pictures as eager, no graph breaks, and few graphs however often plans are renewed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import tomadiff
from tests import tiny
from tests.tiny import Tiny

FAMILIES = ("sdxl", "flux", "sd3", "pixart", "wan")
LONG = [pytest.param(name, marks=pytest.mark.slow) if name != "pixart" else name for name in FAMILIES]
STEPS = 20  # with the default schedule the first is unmerged, and plans are made at all others
REPEATED = {
    "sd3": ["JointTransformerBlock"],
    "pixart": ["BasicTransformerBlock"],
}  # diffusers names none for these


class Backend:
    """Runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compile_blocks(name: str, drawer: Tiny, backend: Backend) -> None:
    if name in REPEATED:
        drawer.model._repeated_blocks = REPEATED[name]
    drawer.model.compile_repeated_blocks(fullgraph=True, backend=backend)


def compile_whole(drawer: Tiny, backend: Backend) -> None:
    setattr(
        drawer.pipe,
        drawer.part,
        torch.compile(drawer.model, fullgraph=True, backend=backend),
    )


def draw(drawer: Tiny, **settings: Any) -> Tensor:
    return drawer.draw(num_inference_steps=STEPS, output_type="latent", **settings)


def eager_pictures(drawer: Tiny, **settings: Any) -> tuple[Tensor, Tensor]:
    """Unmerged and merged, before anything is compiled."""
    unmerged = draw(drawer)
    with tomadiff.apply(drawer.pipe, 0.5, **settings) as patch:
        merged = draw(drawer)
        levels = patch.report().models[0].levels
    assert all(level.plans_made >= STEPS // 10 for level in levels)  # or "no recompilation" would mean little
    assert not torch.equal(unmerged, merged)
    return unmerged, merged


def assert_same(picture: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(picture, expected, rtol=0, atol=1e-5)


# ---------------------------------------------------------------------------------------------- block by block
@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_compiled_blocks_apply_after(name: str) -> None:
    """Compile, draw, apply, draw twice, remove, draw: graphs of both modes live side by side."""
    drawer, backend = tiny.build(name), Backend()
    unmerged, merged = eager_pictures(drawer)
    compile_blocks(name, drawer, backend)
    assert_same(draw(drawer), unmerged)
    unpatched = backend.graphs
    patch = tomadiff.apply(drawer.pipe, 0.5)
    assert_same(draw(drawer), merged)
    assert backend.graphs - unpatched <= 2 * unpatched + 2  # unmerged steps and merged ones of every kind of block
    made = backend.graphs
    assert_same(draw(drawer), merged)
    assert backend.graphs == made, "a second picture compiled anew"
    patch.remove()
    assert_same(draw(drawer), unmerged)
    assert backend.graphs == made, "removal compiled anew"
    assert not counters["graph_break"]


@pytest.mark.slow
def test_compiled_blocks_apply_before() -> None:
    drawer, backend = tiny.build("pixart"), Backend()
    unmerged, merged = eager_pictures(drawer)
    patch = tomadiff.apply(drawer.pipe, 0.5)
    compile_blocks("pixart", drawer, backend)
    assert_same(draw(drawer), merged)
    patched = backend.graphs
    patch.remove()
    assert_same(draw(drawer), unmerged)
    assert patched <= (backend.graphs - patched) + 2
    assert not counters["graph_break"]


@pytest.mark.slow
def test_compiled_blocks_with_whole_block_merging() -> None:
    drawer, backend = tiny.build("sd3"), Backend()
    _, merged = eager_pictures(drawer, span="block")
    tomadiff.apply(drawer.pipe, 0.5, span="block")
    compile_blocks("sd3", drawer, backend)
    assert_same(draw(drawer), merged)
    assert backend.graphs <= 3 * 2
    assert not counters["graph_break"]


# ---------------------------------------------------------------------------------------------- the whole model
@pytest.mark.parametrize("name", LONG)
def test_compiled_model(name: str) -> None:
    drawer, backend = tiny.build(name), Backend()
    _, merged = eager_pictures(drawer)
    compile_whole(drawer, backend)
    tomadiff.apply(drawer.pipe, 0.5)
    assert_same(draw(drawer), merged)
    assert backend.graphs <= 3
    made = backend.graphs
    assert_same(draw(drawer), merged)
    assert backend.graphs == made, "a second picture compiled anew"
    assert not counters["graph_break"]


@pytest.mark.slow
def test_removal_from_a_compiled_model() -> None:
    drawer, backend = tiny.build("pixart"), Backend()
    unmerged, merged = eager_pictures(drawer)
    compile_whole(drawer, backend)
    assert_same(draw(drawer), unmerged)
    with tomadiff.apply(drawer.pipe, 0.5):
        assert_same(draw(drawer), merged)
    made = backend.graphs
    assert_same(draw(drawer), unmerged)
    assert backend.graphs == made, "removal compiled anew"
    assert not counters["graph_break"]


@pytest.mark.slow
def test_compiled_model_with_an_unmerged_window_and_another_size() -> None:
    drawer, backend = tiny.build("pixart"), Backend()
    schedule = tomadiff.Schedule(start=2)
    with tomadiff.apply(drawer.pipe, 0.5, schedule=schedule):
        merged, small = draw(drawer), draw(drawer, height=48)
    compile_whole(drawer, backend)
    tomadiff.apply(drawer.pipe, 0.5, schedule=schedule)
    assert_same(draw(drawer), merged)
    assert backend.graphs <= 2 + 1
    made = backend.graphs
    assert_same(draw(drawer, height=48), small)
    assert backend.graphs <= made + 2  # one for each mode
    made = backend.graphs
    assert_same(draw(drawer), merged)
    assert_same(draw(drawer, height=48), small)
    assert backend.graphs == made
    assert not counters["graph_break"]


@pytest.mark.slow
def test_model_compiled_in_place() -> None:
    drawer, backend = tiny.build("pixart"), Backend()
    unmerged, merged = eager_pictures(drawer)
    drawer.model.compile(fullgraph=True, backend=backend)
    patch = tomadiff.apply(drawer.pipe, 0.5)
    assert_same(draw(drawer), merged)
    assert backend.graphs <= 3
    patch.remove()
    assert_same(draw(drawer), unmerged)
    assert not counters["graph_break"]


@pytest.mark.parametrize("in_place", [False, True])
def test_applying_before_compiling_the_model_says_what_to_do(in_place: bool) -> None:
    drawer = tiny.build("pixart")
    tomadiff.apply(drawer.pipe, 0.5)
    if in_place:
        drawer.model.compile(fullgraph=True, backend=Backend())
    else:
        compile_whole(drawer, Backend())
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"tomadiff\.apply\(…\) after"):
        drawer.draw()


@pytest.mark.slow
def test_applying_before_compiling_the_model_works_without_fullgraph() -> None:
    drawer = tiny.build("pixart")
    _, merged = eager_pictures(drawer)
    tomadiff.apply(drawer.pipe, 0.5)
    drawer.pipe.transformer = torch.compile(drawer.model, backend=Backend())
    assert_same(draw(drawer), merged)


@pytest.mark.slow
def test_changed_settings_need_no_new_compilation_of_the_model() -> None:
    drawer, backend = tiny.build("pixart"), Backend()
    with tomadiff.apply(drawer.pipe, 0.25):
        quarter = draw(drawer)
    compile_whole(drawer, backend)
    patch = tomadiff.apply(drawer.pipe, 0.5)
    draw(drawer)
    patch.set(ratio=0.25)
    assert_same(draw(drawer), quarter)
    assert backend.graphs <= 3 + 1
    assert not counters["graph_break"]


# ---------------------------------------------------------------------------------------------- a real compiler
@pytest.mark.slow
def test_generated_code_draws_the_same() -> None:
    """Inductor: the planning operator and everything around it as C++."""
    drawer = tiny.build("pixart")
    with tomadiff.apply(drawer.pipe, 0.5):
        merged = drawer.draw()
    drawer.model._repeated_blocks = REPEATED["pixart"]
    drawer.model.compile_repeated_blocks(fullgraph=True)
    tomadiff.apply(drawer.pipe, 0.5)
    torch.testing.assert_close(drawer.draw(), merged, rtol=0, atol=3e-3)  # generated code rounds in another order
