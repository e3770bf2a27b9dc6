"""The contract of every family that we know, on real diffusers classes of tiny sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0
from torch import Tensor, nn

import tomadiff
from tests import tiny
from tests.families.contract import Arguments, FamilyContract, recorded
from tomadiff import Grid, Tiles, ToMA

TEXT = 5  # tokens; no grid below keeps as many


def noise(seeds: tuple[int, ...], *shape: int, salt: int = 0) -> Tensor:
    """``(B, …)``, each sample from its own seed."""
    generators = [torch.Generator().manual_seed(1000 * salt + seed) for seed in seeds]
    return torch.stack([torch.randn(shape, generator=generator) for generator in generators])


def timesteps(seeds: tuple[int, ...], value: float = 500.0) -> Tensor:
    return torch.full((len(seeds),), value)


def per_table(arguments: Arguments, name: str, place: int, change: Callable[[Any], Any]) -> Arguments:
    """Change the rotary argument, by name or by place."""
    args, kwargs = arguments
    if kwargs.get(name) is not None:
        return args, {**kwargs, name: change(kwargs[name])}
    if len(args) > place and args[place] is not None:
        return (*args[:place], change(args[place]), *args[place + 1 :]), kwargs
    return arguments


class TestSD15(FamilyContract):
    sizes = ((16, 16), (9, 16), (16, 9), (13, 17), (7, 31))

    def model(self) -> nn.Module:
        return tiny.model("sd15")

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return {
            "sample": noise(seeds, 4, height, width),
            "timestep": timesteps(seeds),
            "encoder_hidden_states": noise(seeds, TEXT, 32, salt=1),
            "return_dict": False,
        }


class TestSDXL(FamilyContract):
    """Its finest grid with attention is half the latent."""

    def model(self) -> nn.Module:
        return tiny.model("sdxl")

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        odd = len(seeds) % 2  # an odd latent and an even one have the same grid below
        return {
            "sample": noise(seeds, 4, 2 * height - odd, 2 * width - odd),
            "timestep": timesteps(seeds),
            "encoder_hidden_states": noise(seeds, TEXT, 64, salt=1),
            "added_cond_kwargs": {"text_embeds": noise(seeds, 32, salt=2), "time_ids": noise(seeds, 6, salt=3).abs()},
            "return_dict": False,
        }


class TestSDXLRefiner(TestSDXL):
    """Attention in the middle two of four levels, four blocks in a stack (two here), five time ids."""

    sizes = ((16, 16), (9, 16), (7, 13))

    def model(self) -> nn.Module:
        return tiny._unet(
            block_out_channels=(8, 16, 16, 16),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            transformer_layers_per_block=2,
            attention_head_dim=(1, 2, 2, 2),
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=5 * 8 + 32,
            cross_attention_dim=64,
        )

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        inputs = super().inputs(height, width, seeds)
        inputs["added_cond_kwargs"]["time_ids"] = noise(seeds, 5, salt=3).abs()
        return inputs

    def test_every_level_with_attention_is_merged(self) -> None:
        """The middle, at an eighth, and the two levels above it."""
        model = self.model()
        with tomadiff.apply(model, ToMA.tile(0.5)) as patch:
            self.run(model, **self.inputs(16, 16))
            assert [level.tokens_before for level in patch.report().models[0].levels] == [256, 64, 16]


class TestSDXLWithIPAdapter(TestSDXL):
    """Cross-attention looks at image embeddings too, through processors of its own."""

    sizes = ((8, 8), (9, 16), (7, 13))

    def model(self) -> nn.Module:
        model = super().model()
        torch.manual_seed(2)
        for name, attention in model.named_modules():
            if name.endswith("attn2"):
                attention.set_processor(IPAdapterAttnProcessor2_0(attention.inner_dim, 64, num_tokens=(2,)))
        model.encoder_hid_proj = ImageEmbeddings()
        model.register_to_config(encoder_hid_dim_type="ip_image_proj")
        return model

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        inputs = super().inputs(height, width, seeds)
        inputs["added_cond_kwargs"]["image_embeds"] = [noise(seeds, 1, 2, 64, salt=4)]
        return inputs


class ImageEmbeddings(nn.Module):
    """Passes embeddings on as they are."""

    def forward(self, embeddings: list[Tensor]) -> list[Tensor]:
        return embeddings


class TestFlux(FamilyContract):
    shares_batch = True
    references = 0
    text = TEXT

    def model(self) -> nn.Module:
        return tiny.model("flux")

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = [(0, row, column) for row in range(height) for column in range(width)]
        ids = torch.tensor(own + [(1, row, column) for row in range(self.references) for column in range(3)]).float()
        return {
            "hidden_states": noise(seeds, len(ids), 16),
            "encoder_hidden_states": noise(seeds, self.text, 32, salt=1),
            "pooled_projections": noise(seeds, 32, salt=2),
            "timestep": timesteps(seeds, 0.5),
            "img_ids": ids,
            "txt_ids": torch.zeros(self.text, 3),
            "guidance": timesteps(seeds, 3.5),
            "return_dict": False,
        }

    def pick_rows(self, arguments: Arguments, rows: Tensor, tokens: int) -> Arguments:
        def gather(tables: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            image = rows[0] + self.text
            behind = torch.arange(self.text + tokens - 3 * self.references, self.text + tokens)
            return tuple(table[torch.cat([torch.arange(self.text), image, behind])] for table in tables)

        return per_table(arguments, "image_rotary_emb", 2, gather)


class TestFluxKontext(TestFlux):
    """Tokens of a reference picture behind those that are drawn."""

    references = 4
    sizes = ((8, 8), (9, 16), (7, 13))

    def test_reference_tokens_stay_whole(self) -> None:
        model = self.model()
        with tomadiff.apply(model, 0.5, skip=0):
            calls = recorded(model, lambda: self.run(model, **self.inputs(8, 8)))
        assert {call.plan.tokens for call in calls} == {64}
        assert {call.tokens.shape[1] for call in calls} == {64 + 12}


class TestFluxWithoutText(TestFlux):
    text = 1
    sizes = ((8, 8), (7, 13))


class TestFluxLongText(TestFlux):
    text = 101
    sizes = ((8, 8), (7, 13))


class TestSD3(FamilyContract):
    """One of its blocks has a second attention."""

    sizes = ((8, 8), (9, 16), (16, 9), (7, 13), (5, 29))

    def model(self) -> nn.Module:
        return tiny.model("sd3")

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return {
            "hidden_states": noise(seeds, 4, 2 * height, 2 * width),
            "encoder_hidden_states": noise(seeds, TEXT, 32, salt=1),
            "pooled_projections": noise(seeds, 64, salt=2),
            "timestep": timesteps(seeds),
            "return_dict": False,
        }

    def test_dual_attention_is_merged(self) -> None:
        with tomadiff.apply(self.model(), 0.5) as patch:
            assert [level.sites for level in patch.report().models[0].levels] == [3, 2, 2]


class TestPixArt(FamilyContract):
    def model(self) -> nn.Module:
        return tiny.model("pixart")

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        mask = torch.ones(len(seeds), TEXT)
        mask[:, -1] = 0  # a mask over the text is no obstacle
        return {
            "hidden_states": noise(seeds, 4, 2 * height, 2 * width),
            "encoder_hidden_states": noise(seeds, TEXT, 32, salt=1),
            "encoder_attention_mask": mask,
            "timestep": timesteps(seeds),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            "return_dict": False,
        }


class TestWan(FamilyContract):
    frames = 2
    sizes = ((4, 4), (4, 8), (8, 4), (5, 7), (3, 11))

    def model(self) -> nn.Module:
        return tiny.model("wan")

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return {
            "hidden_states": noise(seeds, 16, self.frames, 2 * height, 2 * width),
            "encoder_hidden_states": noise(seeds, TEXT, 32, salt=1),
            "timestep": timesteps(seeds),
            "return_dict": False,
        }

    def pick_rows(self, arguments: Arguments, rows: Tensor, tokens: int) -> Arguments:
        def gather(tables: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(torch.stack([table[0, own] for own in rows]) for table in tables)

        return per_table(arguments, "rotary_emb", 2, gather)

    def test_tiles_do_not_cross_frames(self) -> None:
        model = self.model()
        with tomadiff.apply(model, 0.5, regions=Tiles(4)):
            calls = recorded(model, lambda: self.run(model, **self.inputs(5, 7)))
        plan = calls[0].plan
        assert plan.grid == Grid(5, 7, frames=2)
        frame = plan.layout.index // 35
        assert bool((frame == frame[:, :1]).all())

    def test_one_timestep_per_token_is_bypassed_by_whole_blocks(self, caplog: pytest.LogCaptureFixture) -> None:
        model, inputs = self.model(), self.inputs(4, 4)
        inputs["timestep"] = torch.full((1, 32), 500.0)
        plain = self.run(model, **inputs)
        with tomadiff.apply(model, 0.5, span="block"):
            assert torch.equal(self.run(model, **inputs), plain)
        assert caplog.text.count("timestep of its own") == 1
        with tomadiff.apply(model, 0.5) as patch:
            assert not torch.equal(self.run(model, **inputs), plain)
            assert not patch.report().models[0].bypassed


class TestQwenImage(FamilyContract):
    shares_batch = True
    references = 0

    def model(self) -> nn.Module:
        return tiny.qwen_image()[0]

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        count = height * width * (1 + self.references)
        mask = torch.ones(len(seeds), TEXT, dtype=torch.long)
        mask[0, -1] = 0
        return {
            "hidden_states": noise(seeds, count, 16),
            "encoder_hidden_states": noise(seeds, TEXT, 32, salt=1),
            "encoder_hidden_states_mask": mask,
            "timestep": timesteps(seeds, 0.7),
            "img_shapes": [[(1, height, width)] * (1 + self.references)] * len(seeds),
            **tiny.text_lengths(TEXT, len(seeds)),
            "return_dict": False,
        }

    def pick_rows(self, arguments: Arguments, rows: Tensor, tokens: int) -> Arguments:
        def gather(tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            image, text = tables
            behind = torch.arange(tokens // (1 + self.references), tokens)
            return image[torch.cat([rows[0], behind])], text

        return per_table(arguments, "image_rotary_emb", 3, gather)


class TestQwenImageEdit(TestQwenImage):
    references = 1
    sizes = ((8, 8), (9, 16), (7, 13))
