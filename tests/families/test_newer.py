"""The contract of the families that came with later versions of diffusers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import tomadiff
from tests import newer
from tests.families.contract import CLOSE, Arguments, FamilyContract, recorded
from tests.families.test_families import noise, per_table, timesteps
from tests.newer import TEXT, WIDTH, needs
from tomadiff.cost.work import work_of
from tomadiff.families import family_of

BOTH_SPANS = pytest.mark.parametrize("span", ["op", "block"])
NOWHERE = 99  # place of an argument that is always named


def raster(height: int, width: int, time: float = 0, step: float = 1) -> list[tuple[float, ...]]:
    """Ids of time, row, column, layer."""
    return [(time, step * row, step * column, 0) for row in range(height) for column in range(width)]


class NewerContract(FamilyContract):
    """Few sizes by default: 1:1, 16:9 and an odd one, in batches of one, two and three.

    ``picks`` are the arguments with a row for every token: name, place and axis.
    """

    sizes = ((8, 8), (9, 16), (7, 13))
    more_sizes = ((8, 8), (9, 16), (16, 9), (7, 13), (5, 31))
    picks: tuple[tuple[str, int, int], ...] = ()
    behind = 0  # tokens behind the grid
    grid = 0  # tokens of the grid, as of the last inputs

    def before(self, length: int) -> int:
        """Rows before those of the grid in a table of ``length`` rows."""
        return length - self.grid - self.behind

    def pick_rows(self, arguments: Arguments, rows: Tensor, tokens: int) -> Arguments:
        for name, place, axis in self.picks:
            arguments = per_table(arguments, name, place, partial(self._picked, rows=rows, axis=axis))
        return arguments

    @pytest.mark.slow
    def test_compiled_blocks_compute_the_same(self) -> None:
        """No graph breaks, and a second image needs no other graphs."""
        model, inputs = self.model(), self.inputs(*self.sizes[0], seeds=(0, 1))
        with tomadiff.apply(model, 0.5, skip=0):
            merged = self.run(model, **inputs)
        torch.compiler.reset()
        counters.clear()
        made: list[int] = []

        def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
            made.append(1)
            return graph.forward

        model._repeated_blocks = [block.name for block in family_of(model).blocks]
        with tomadiff.apply(model, 0.5, skip=0) as patch:
            model.compile_repeated_blocks(fullgraph=True, backend=backend)
            torch.testing.assert_close(self.run(model, **inputs), merged, rtol=1e-4, atol=1e-4)
            count = len(made)
            patch.begin()
            torch.testing.assert_close(self.run(model, **inputs), merged, rtol=1e-4, atol=1e-4)
        assert 0 < count == len(made)
        assert not counters["graph_break"]

    def _picked(self, value: Any, rows: Tensor, axis: int) -> Any:
        if isinstance(value, tuple):
            return tuple(self._picked(one, rows, axis) for one in value)
        length = value.shape[axis] if value.dim() > axis else 0
        if length < self.grid:  # one row serves all tokens, or it is another argument
            return value
        head = self.before(length)
        kept = [torch.cat([torch.arange(head), head + own, torch.arange(head + self.grid, length)]) for own in rows]
        if axis == 0:
            return value[kept[0]]
        samples = value.expand(len(rows), *value.shape[1:])
        return torch.stack(
            [one.index_select(axis % value.dim() - 1, own) for one, own in zip(samples, kept, strict=True)]
        )


@needs("ZImageTransformer2DModel")
class TestZImage(NewerContract):
    """The third sample of a batch has a longer text: a mask is given."""

    picks = (("freqs_cis", 1, 1), ("attention_mask", NOWHERE, -1), ("attn_mask", 0, -1))

    def model(self) -> nn.Module:
        return newer.z_image()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid = height * width
        lengths = [TEXT + 32 * (place == 2) for place in range(len(seeds))]
        return {
            "x": list(noise(seeds, 4, 1, 2 * height, 2 * width)),
            "t": timesteps(seeds, 0.5),
            "cap_feats": [
                noise((seed,), length, WIDTH, salt=1)[0] for seed, length in zip(seeds, lengths, strict=True)
            ],
            "return_dict": False,
        }

    def run(self, model: nn.Module, **inputs: Any) -> Tensor:
        with torch.no_grad():
            return torch.stack(model(**inputs)[0])

    def before(self, length: int) -> int:
        return 0

    def test_images_of_several_sizes_stay_unmerged(self, caplog: pytest.LogCaptureFixture) -> None:
        model, inputs = self.model(), self.inputs(8, 8, seeds=(0, 1))
        inputs["x"][1] = inputs["x"][1][..., :8]
        with torch.no_grad():
            plain = model(**inputs)[0]
            with tomadiff.apply(model, 0.5):
                same = model(**inputs)[0]
        assert all(map(torch.equal, plain, same))
        assert "could not be read" in caplog.text


@needs("Flux2Transformer2DModel")
class TestFlux2(NewerContract):
    shares_batch = True
    references = 0
    picks = (("image_rotary_emb", NOWHERE, 0),)

    def model(self) -> nn.Module:
        return newer.flux2()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid, self.behind = height * width, 6 * self.references
        ids = raster(height, width) + [one for each in range(self.references) for one in raster(2, 3, 10.0 + each)]
        return {
            "hidden_states": noise(seeds, len(ids), 4),
            "encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "img_ids": torch.tensor(ids)[None].expand(len(seeds), -1, -1),
            "txt_ids": torch.tensor([[(0, 0, 0, place) for place in range(TEXT)]]).expand(len(seeds), -1, -1),
            "guidance": timesteps(seeds, 3.5),
            "return_dict": False,
        }

    def head(self, module: nn.Module) -> int:
        return TEXT if type(module).__name__ in ("Flux2ParallelSelfAttention", "Flux2SingleTransformerBlock") else 0

    @BOTH_SPANS
    def test_references_stay_whole(self, span: Any) -> None:
        self.references = 2
        self._check_sites(span, [((7, 13), 2)])

    def test_guard_counts_projections_that_are_one_matrix(self) -> None:
        work = work_of("attention", self.model().single_transformer_blocks[0].attn)
        assert work is not None
        assert work.products == ((32, 3 * 32 + 2 * 96), (32 + 96, 32))
        assert work.mixed == (32,)

    def test_cache_of_references_is_untouched(self) -> None:
        """References come first then and see themselves alone, so their keys stay the same."""
        from diffusers.models.transformers import transformer_flux2 as flux2

        model, inputs = self.model(), self.inputs(8, 8, seeds=(0, 1))
        ids = torch.cat([torch.tensor([raster(2, 3, 10.0)] * 2), inputs["img_ids"]], dim=1)
        tokens = torch.cat([noise((0, 1), 6, 4, salt=2), inputs["hidden_states"]], dim=1)
        later, inputs = inputs, {**inputs, "hidden_states": tokens, "img_ids": ids}
        for block in (*model.transformer_blocks, *model.single_transformer_blocks):
            double = block in model.transformer_blocks
            block.attn.set_processor(
                flux2.Flux2KVAttnProcessor() if double else flux2.Flux2KVParallelSelfAttnProcessor()
            )
        with torch.no_grad():
            _, plain = model(**inputs, kv_cache_mode="extract", num_ref_tokens=6)
            with tomadiff.apply(model, 0.5, skip=0) as patch:
                _, cache = model(**inputs, kv_cache_mode="extract", num_ref_tokens=6)
                patch.begin()
                calls = recorded(model, lambda: model(**later, kv_cache=cache, kv_cache_mode="cached"))
                assert not patch.report().models[0].bypassed
        assert {call.tokens.shape[1] for call in calls} == {64, 64 + TEXT}
        for one, other in zip(plain.single_block_caches, cache.single_block_caches, strict=True):
            torch.testing.assert_close(one.k_ref, other.k_ref, **CLOSE)
            torch.testing.assert_close(one.v_ref, other.v_ref, **CLOSE)


@needs("Flux3Transformer2DModel")
class TestFlux3(NewerContract):
    """Ids in steps of one half, as its pipelines make them."""

    shares_batch = True
    references = 0
    picks = (("image_rotary_emb", 1, 0), ("temb_mod", 0, 1))

    def model(self) -> nn.Module:
        model = newer.flux3()
        for block in model.single_transformer_blocks:
            block.attn.is_joint = block.ff.is_joint = True
        return model

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid = height * width
        inputs = {
            "hidden_states": noise(seeds, self.grid, 4),
            "encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "img_ids": torch.tensor(raster(height, width, step=0.5)),
            "txt_ids": torch.tensor([(0, 0, 0, place) for place in range(TEXT)]),
            "return_dict": False,
        }
        if self.references:
            ids = torch.tensor([one for each in range(self.references) for one in raster(2, 3, 10.0 + each)])
            inputs |= {"image_cond_hidden_states": noise(seeds, len(ids), 4, salt=2), "image_cond_ids": ids}
        return inputs

    def before(self, length: int) -> int:
        return TEXT if length >= TEXT + self.grid + 6 * self.references else 0

    def head(self, module: nn.Module) -> int:
        return TEXT if getattr(module, "is_joint", False) else 0

    @BOTH_SPANS
    def test_references_stay_whole(self, span: Any) -> None:
        self.references = 2
        self._check_sites(span, [((7, 13), 2)])


@needs("Krea2Transformer2DModel")
class TestKrea2(NewerContract):
    """The last word of every second text is padding."""

    shares_batch = True
    picks = (("image_rotary_emb", 1, 0), ("attention_mask", 2, -1))

    def model(self) -> nn.Module:
        return newer.krea2()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid = height * width
        mask = torch.ones(len(seeds), TEXT, dtype=torch.bool)
        mask[1::2, -1] = False
        ids = torch.tensor(raster(height, width))[:, :3]
        return {
            "hidden_states": noise(seeds, self.grid, 4),
            "encoder_hidden_states": noise(seeds, TEXT, 2, WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "position_ids": torch.cat([torch.zeros(TEXT, 3), ids]),
            "encoder_attention_mask": mask,
            "return_dict": False,
        }

    def head(self, module: nn.Module) -> int:
        return TEXT


@needs("QwenImage21Transformer2DModel")
class TestQwenImage21(NewerContract):
    """Sides are even; the first sample's text is one token shorter."""

    sizes = ((8, 8), (10, 16), (6, 14))
    more_sizes = ((8, 8), (10, 16), (16, 10), (6, 14), (4, 30))
    shares_batch = True
    picks = (
        ("rotary_emb", NOWHERE, 0),
        ("attention_mask", NOWHERE, -1),
        ("key_valid", NOWHERE, 1),
        ("target_token_mask", NOWHERE, 0),
    )
    references = 0

    def model(self) -> nn.Module:
        return newer.qwen_image21()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid, shape = height * width, (1, height, width)
        text = [False] * TEXT + [True, False] * self.references
        slots = torch.tensor([text + [True] * (self.grid // 4)]).expand(len(seeds), -1)
        mask = torch.ones(len(seeds), len(text), dtype=torch.bool)
        mask[0, TEXT - 1] = False
        return {
            "hidden_states": noise(seeds, self.grid + 4 * self.references, 4),
            "encoder_hidden_states": noise(seeds, len(text), WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "img_shapes": [[(1, 2, 2)] * self.references + [shape]] * len(seeds),
            "img_mask": slots,
            "encoder_hidden_states_mask": mask,
            "return_dict": False,
        }

    def run(self, model: nn.Module, **inputs: Any) -> Tensor:
        return super().run(model, **inputs)[:, -self.grid :]

    def head(self, module: nn.Module) -> int:
        return TEXT + 5 * self.references

    @BOTH_SPANS
    def test_images_to_edit_from_stay_whole(self, span: Any) -> None:
        self.references = 1
        self._check_sites(span, [((6, 14), 2)])

    def test_cache_of_the_prefix_is_untouched(self) -> None:
        """Text sees no image tokens, so its keys stay the same; later calls hold the image alone."""
        from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

        model, inputs = self.model(), self.inputs(8, 8, seeds=(0, 1))
        caches = [QwenImage21KVCache(2) for _ in range(2)]
        self.run(model, **inputs, kv_cache=caches[0], kv_cache_mode="extract")
        with tomadiff.apply(model, 0.5) as patch:
            self.run(model, **inputs, kv_cache=caches[1], kv_cache_mode="extract")
            patch.begin()
            calls = recorded(model, lambda: self.run(model, **inputs, kv_cache=caches[1], kv_cache_mode="cached"))
            assert not patch.report().models[0].bypassed
        assert {call.tokens.shape[1] for call in calls} == {64}
        for plain, merged in zip(caches[0].layer_caches, caches[1].layer_caches, strict=True):
            torch.testing.assert_close(plain.k, merged.k, **CLOSE)
            torch.testing.assert_close(plain.v, merged.v, **CLOSE)

    def test_samples_with_destinations_of_their_own_leave_a_cache_alone(self) -> None:
        from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

        model, inputs = self.model(), self.inputs(8, 8, seeds=(0, 1))
        caches = [QwenImage21KVCache(2) for _ in range(2)]
        self.run(model, **inputs, kv_cache=caches[0], kv_cache_mode="extract")
        with tomadiff.apply(model, 0.5, share="sample") as patch:
            self.run(model, **inputs, kv_cache=caches[1], kv_cache_mode="extract")
            assert any("whole batch" in reason for reason in patch.report().models[0].bypassed)
        assert torch.equal(caches[0].layer_caches[0].k, caches[1].layer_caches[0].k)


@needs("CosmosTransformer3DModel")
class TestCosmos(NewerContract):
    """Two frames."""

    sizes = ((4, 4), (4, 8), (5, 7))
    more_sizes = ((4, 4), (4, 8), (8, 4), (5, 7), (3, 11))
    shares_batch = True
    picks = (("image_rotary_emb", 3, 0),)

    def model(self) -> nn.Module:
        return newer.cosmos()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid = 2 * height * width
        return {
            "hidden_states": noise(seeds, 4, 2, 2 * height, 2 * width),
            "timestep": timesteps(seeds, 0.5),
            "encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=1),
            "return_dict": False,
        }
