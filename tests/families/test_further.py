"""The contract of all other families, in the slow suite; ``test_further_brief.py`` looks at each of them in short."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tomadiff
from tests import newer
from tests.families.contract import recorded, sites
from tests.families.test_families import noise, timesteps
from tests.families.test_newer import BOTH_SPANS, NOWHERE, NewerContract, raster
from tests.newer import TEXT, WIDTH, needs

pytestmark = pytest.mark.slow


def valid(seeds: tuple[int, ...]) -> Tensor:
    """A mask of the text; the last word of every second one is padding."""
    mask = torch.ones(len(seeds), TEXT)
    mask[1::2, -1] = 0
    return mask


class ImageContract(NewerContract):
    """Latents ``(B, 4, H, W)`` in patches of two."""

    patch = 2

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid = height * width
        return {
            "hidden_states": noise(seeds, 4, self.patch * height, self.patch * width),
            "encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "return_dict": False,
        }


class VideoContract(NewerContract):
    """Two frames of latents ``(B, 4, F, H, W)`` in patches of two."""

    sizes = ((4, 4), (4, 8), (5, 7))
    more_sizes = ((4, 4), (4, 8), (8, 4), (5, 7), (3, 11))

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid = 2 * height * width
        return {
            "hidden_states": noise(seeds, 4, 2, 2 * height, 2 * width),
            "encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "return_dict": False,
        }


# ---------------------------------------------------------------------------------------------- Wan's kin
@needs("WanVACETransformer3DModel")
class TestWanVACE(VideoContract):
    picks = (("rotary_emb", 2, 1),)

    def model(self) -> nn.Module:
        return newer.wan_vace()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        control = noise(seeds, 8, 2, 2 * height, 2 * width, salt=2)
        return {**super().inputs(height, width, seeds), "control_hidden_states": control}


@needs("WanAnimateTransformer3DModel")
class TestWanAnimate(VideoContract):
    picks = (("rotary_emb", 2, 1),)

    def model(self) -> nn.Module:
        return newer.wan_animate()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return {
            **super().inputs(height, width, seeds),
            "hidden_states": noise(seeds, 12, 2, 2 * height, 2 * width),
            "encoder_hidden_states_image": noise(seeds, 2, 8, salt=2),
            "pose_hidden_states": noise(seeds, 4, 1, 2 * height, 2 * width, salt=3),
            "face_pixel_values": noise(seeds, 3, 1, 8, 8, salt=4),
        }


@needs("ChronoEditTransformer3DModel")
class TestChronoEdit(VideoContract):
    picks = (("rotary_emb", 2, 1),)

    def model(self) -> nn.Module:
        return newer.chrono_edit()


@needs("SkyReelsV2Transformer3DModel")
class TestSkyReels(VideoContract):
    """A time for every frame, and frames that do not see later ones."""

    sizes = ((4, 4), (4, 8), (5, 7))
    picks = (
        ("rotary_emb", 2, 1),
        ("rotary_emb", 2, 2),
        *((("attention_mask", place, axis)) for place in (1, 3) for axis in (-1, -2)),
        ("temb", 1, 2),
    )

    def model(self) -> nn.Module:
        return newer.skyreels(frames_per_block=2)

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        own["timestep"] = torch.tensor([[300.0, 700.0]]).expand(len(seeds), -1)
        return {**own, "enable_diffusion_forcing": True}


# ---------------------------------------------------------------------------------------------- LTX
@needs("LTXVideoTransformer3DModel")
class TestLTX(VideoContract):
    picks = (("image_rotary_emb", NOWHERE, 1), ("temb", NOWHERE, 1))
    conditions = 0

    def model(self) -> nn.Module:
        return newer.ltx()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = {**super().inputs(height, width, seeds), "encoder_attention_mask": valid(seeds)}
        if not self.conditions:
            own["hidden_states"] = noise(seeds, self.grid, 4)
            return {**own, "height": height, "width": width, "num_frames": 2}
        spots = [(time, row, column) for time in (3.0, 0.0, 1.0) for row in range(height) for column in range(width)]
        coords = torch.tensor(spots).T[None].expand(len(seeds), -1, -1)
        times = torch.full((len(seeds), len(spots)), 500.0).index_fill(1, torch.arange(height * width), 0.0)
        return {**own, "hidden_states": noise(seeds, len(spots), 4), "video_coords": coords, "timestep": times}

    def head(self, module: nn.Module) -> int:
        return self.conditions * self.grid // 2

    @BOTH_SPANS
    def test_conditions_stay_whole(self, span: Any) -> None:
        self.conditions = 1
        self._check_sites(span, [((5, 7), 2)])


@needs("LTX2VideoTransformer3DModel")
class TestLTX2(VideoContract):
    rope_type = "interleaved"
    references = 0
    picks = (
        *((name, NOWHERE, -2) for name in ("query_rotary_emb", "video_rotary_emb", "ca_video_rotary_emb")),
        *((name, NOWHERE, axis) for name in ("attention_mask", "self_attention_mask") for axis in (-1, -2)),
        *((name, NOWHERE, 1) for name in ("temb", "temb_ca_scale_shift", "temb_ca_gate")),
    )

    def model(self) -> nn.Module:
        return newer.ltx2(self.rope_type)

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        self.behind = 6 * self.references
        inputs = {
            **own,
            "hidden_states": noise(seeds, self.grid + self.behind, 4),
            "audio_hidden_states": noise(seeds, 3, 4, salt=2),
            "audio_encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=3),
            "encoder_attention_mask": valid(seeds),
            "audio_encoder_attention_mask": valid(seeds),
            "height": height, "width": width, "num_frames": 2, "audio_num_frames": 3,
        }  # fmt: skip
        if not self.references:
            return inputs
        model = newer.ltx2(self.rope_type)
        coords = model.rope.prepare_video_coords(len(seeds), 2, height, width, "cpu")
        count = self.grid + self.behind
        mask = torch.rand(len(seeds), count, count, generator=torch.Generator().manual_seed(0))
        return {
            **inputs,
            "video_coords": torch.cat([coords, coords[:, :, : self.behind]], dim=2),
            "timestep": torch.full((len(seeds), count), 500.0).index_fill(1, torch.arange(self.grid, count), 0.0),
            "audio_timestep": timesteps(seeds, 500.0),
            "video_self_attention_mask": mask,
        }

    @BOTH_SPANS
    def test_references_stay_whole(self, span: Any) -> None:
        self.references = 1
        self._check_sites(span, [((5, 7), 2)])


class TestLTX2WithHeadsFirst(TestLTX2):
    rope_type = "split"


# ---------------------------------------------------------------------------------------------- Flux's kin
class FluxContract(NewerContract):
    """Tokens and ids; reference images behind."""

    shares_batch = True
    references = 0
    image = 0.0  # first id of the image
    picks: tuple[tuple[str, int, int], ...] = (("image_rotary_emb", NOWHERE, 0),)

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        self.grid, self.behind = height * width, 6 * self.references
        ids = raster(height, width, self.image)
        ids += [one for each in range(self.references) for one in raster(2, 3, self.image + 1 + each)]
        return {
            "hidden_states": noise(seeds, len(ids), 4),
            "encoder_hidden_states": noise(seeds, TEXT, WIDTH, salt=1),
            "timestep": timesteps(seeds, 0.5),
            "img_ids": torch.tensor(ids)[:, :3],
            "txt_ids": torch.zeros(TEXT, 3),
            "return_dict": False,
        }


@needs("ChromaTransformer2DModel")
class TestChroma(FluxContract):
    picks = (*FluxContract.picks, ("attention_mask", NOWHERE, -1), ("attention_mask", NOWHERE, -2))

    def model(self) -> nn.Module:
        return newer.chroma()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        mask = torch.cat([valid(seeds), torch.ones(len(seeds), own["hidden_states"].shape[1])], dim=1)
        return {**own, "attention_mask": mask.bool()}

    def head(self, module: nn.Module) -> int:
        return TEXT if type(module).__name__ == "ChromaSingleTransformerBlock" else 0


@needs("LongCatImageTransformer2DModel")
class TestLongCatImage(FluxContract):
    """Its images begin with 1."""

    image = 1.0

    def model(self) -> nn.Module:
        return newer.flux_kin("LongCatImageTransformer2DModel")

    @BOTH_SPANS
    def test_references_stay_whole(self, span: Any) -> None:
        self.references = 2
        self._check_sites(span, [((7, 13), 2)])


@needs("OvisImageTransformer2DModel")
class TestOvisImage(FluxContract):
    def model(self) -> nn.Module:
        return newer.flux_kin("OvisImageTransformer2DModel")


@needs("BriaTransformer2DModel")
class TestBria(FluxContract):
    def model(self) -> nn.Module:
        return newer.flux_kin("BriaTransformer2DModel")


# ---------------------------------------------------------------------------------------------- Hunyuan
class ImageBeforeText(NewerContract):
    """Masks cover the image, then the text."""

    def before(self, length: int) -> int:
        return 0


@needs("HunyuanVideoTransformer3DModel")
class TestHunyuanVideo(ImageBeforeText, VideoContract):
    shares_batch = True
    picks = (("image_rotary_emb", 3, 0), ("attention_mask", 2, -1))

    def model(self) -> nn.Module:
        return newer.hunyuan_video()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = {**super().inputs(height, width, seeds), "encoder_attention_mask": valid(seeds)}
        return {**own, "pooled_projections": noise(seeds, 8, salt=2), "guidance": timesteps(seeds, 3.5)}


class TestHunyuanVideoTokenReplace(TestHunyuanVideo):
    """Its first frame has modulation of its own: ops alone, and those of joint blocks."""

    def model(self) -> nn.Module:
        return newer.hunyuan_video("token_replace")


@needs("HunyuanVideo15Transformer3DModel")
class TestHunyuanVideo15(VideoContract):
    shares_batch = True
    picks = (("image_rotary_emb", NOWHERE, 0), ("freqs_cis", 3, 0))

    def model(self) -> nn.Module:
        return newer.hunyuan_video15()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return {
            **super().inputs(height, width, seeds),
            "encoder_attention_mask": valid(seeds),
            "encoder_hidden_states_2": noise(seeds, 3, 8, salt=2),
            "encoder_attention_mask_2": torch.ones(len(seeds), 3),
            "image_embeds": noise(seeds, 2, 8, salt=3),
        }


@needs("HunyuanImageTransformer2DModel")
class TestHunyuanImage(ImageBeforeText, ImageContract):
    shares_batch = True
    patch = 1
    picks = (("image_rotary_emb", NOWHERE, 0), ("attention_mask", NOWHERE, -1))

    def model(self) -> nn.Module:
        return newer.hunyuan_image()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return {**super().inputs(height, width, seeds), "encoder_attention_mask": valid(seeds)}


class TestHunyuanImageRefiner(TestHunyuanImage):
    """Its images have frames."""

    def model(self) -> nn.Module:
        return newer.hunyuan_image(refiner=True)

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        self.grid *= 2
        return {**own, "hidden_states": noise(seeds, 4, 2, height, width)}


# ---------------------------------------------------------------------------------------------- one feed-forward
@needs("CogView4Transformer2DModel")
class TestCogView4(ImageContract):
    shares_batch = True
    picks = (("image_rotary_emb", 2, 0),)

    def model(self) -> nn.Module:
        return newer.cogview4()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        sizes = torch.tensor([[64.0, 64.0]]).expand(len(seeds), -1)
        own = {**super().inputs(height, width, seeds), "attention_mask": valid(seeds)}
        return {**own, "original_size": sizes, "target_size": sizes, "crop_coords": 0 * sizes}

    def test_text_as_long_as_the_image_stays_whole(self) -> None:
        """The feed-forward cannot tell them apart then, so it runs on both as it is."""
        model, inputs = self.model(), self.inputs(8, 8)
        inputs |= {"encoder_hidden_states": noise((0,), 64, WIDTH), "attention_mask": torch.ones(1, 64)}
        given: list[Tensor] = []
        with tomadiff.apply(model, 0.5) as patch:
            handle = (
                model.transformer_blocks[0].ff.net[0].register_forward_pre_hook(lambda _, args: given.append(args[0]))
            )
            calls = recorded(model, lambda: self.run(model, **inputs))
            assert any("the text is as long as the image" in one for one in patch.report().models[0].bypassed)
        handle.remove()
        assert [one.shape[1] for one in given] == [64, 64]
        assert {call.plan.kept for call in calls if call.kind == "attention"} == {32}


@needs("GlmImageTransformer2DModel")
class TestGlmImage(TestCogView4):
    def model(self) -> nn.Module:
        return newer.glm_image()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        del own["original_size"]
        tokens = noise(seeds, height * width, salt=2).abs().mul(9).long() % 32
        return {**own, "prior_token_id": tokens, "prior_token_drop": torch.zeros(len(seeds), dtype=torch.bool)}

    def test_images_to_edit_from_are_cached_whole(self) -> None:
        from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache

        model, inputs = self.model(), self.inputs(8, 8)
        del inputs["attention_mask"]
        caches = [GlmImageKVCache(2) for _ in range(2)]
        reading = {**inputs, "encoder_hidden_states": inputs["encoder_hidden_states"][:, :0]}
        for cache in caches:
            cache.set_mode("write")
        self.run(model, **reading, kv_caches=caches[0])
        with tomadiff.apply(model, 0.5) as patch:
            self.run(model, **reading, kv_caches=caches[1])
            caches[1].set_mode("read")
            calls = recorded(model, lambda: self.run(model, **inputs, kv_caches=caches[1]))
            assert patch.report().models[0].merged
        assert len(calls) == 4
        for call in calls:
            self.check_call(call)
        for layer in range(2):
            assert torch.equal(caches[0][layer].k_caches[0], caches[1][layer].k_caches[0])


# ---------------------------------------------------------------------------------------------- one sequence
@needs("Lumina2Transformer2DModel")
class TestLumina2(ImageContract):
    picks = (("image_rotary_emb", 1, 1),)

    def model(self) -> nn.Module:
        return newer.lumina2()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        mask = torch.ones(len(seeds), TEXT, dtype=torch.bool)
        mask[:, -1] = False
        return {**super().inputs(height, width, seeds), "encoder_attention_mask": mask}

    def head(self, module: nn.Module) -> int:
        return TEXT - 1

    def merged_again(self, arguments: dict[str, Any], merge: Tensor) -> dict[str, Any]:
        return {name: merge @ value if name == "encoder_hidden_states" else value for name, value in arguments.items()}

    def test_texts_of_several_lengths_stay_unmerged(self, caplog: pytest.LogCaptureFixture) -> None:
        model, inputs = self.model(), self.inputs(8, 8, seeds=(0, 1))
        inputs["encoder_attention_mask"] = valid((0, 1)).bool()
        plain = self.run(model, **inputs)
        with tomadiff.apply(model, 0.5):
            assert torch.equal(self.run(model, **inputs), plain)
        assert "could not be read" in caplog.text


@needs("ErnieImageTransformer2DModel")
class TestErnieImage(ImageBeforeText, ImageContract):
    """The last word of every second text is padding."""

    patch = 1
    picks = (("image_rotary_emb", NOWHERE, 1), ("attention_mask", NOWHERE, -1))

    def model(self) -> nn.Module:
        return newer.ernie_image()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        text = own.pop("encoder_hidden_states")
        return {**own, "text_bth": text, "text_lens": valid(seeds).sum(1).long()}

    def test_whole_blocks_are_taken_apart(self) -> None:
        model = self.model()
        with tomadiff.apply(model, 0.5, span="block"):
            assert {site.kind for _, site in sites(model)} == {"attention", "feed_forward"}


@needs("CogVideoXTransformer3DModel")
class TestCogVideoX(ImageBeforeText, VideoContract):
    shares_batch = True
    picks = (("image_rotary_emb", NOWHERE, 0),)

    def model(self) -> nn.Module:
        return newer.cogvideox()

    def inputs(self, height: int, width: int, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
        own = super().inputs(height, width, seeds)
        angles = noise((0,), self.grid, 16, salt=2)[0]
        rotary = {"image_rotary_emb": (angles.cos(), angles.sin())}
        return {**own, "hidden_states": own["hidden_states"].transpose(1, 2).contiguous(), **rotary}

    def head(self, module: nn.Module) -> int:
        return TEXT if type(module).__name__ == "FeedForward" else 0


@needs("AuraFlowTransformer2DModel")
class TestAuraFlow(ImageContract):
    """Eight registers join the text."""

    def model(self) -> nn.Module:
        model = newer.aura_flow()
        for block in model.single_transformer_blocks:
            block.is_single = block.attn.is_single = block.ff.is_single = True
        return model

    def head(self, module: nn.Module) -> int:
        return TEXT + 8 if getattr(module, "is_single", False) else 0


@needs("LTXVideoTransformer3DModel")
def test_the_grid_behind_conditions_is_found() -> None:
    """Whole frames at the end whose times increase; frames before them may be any."""
    from tomadiff.families.ltx import _last_grid

    def coords(*times: float, height: int = 3, width: int = 4) -> Tensor:
        spots = [(time, row, column) for time in times for row in range(height) for column in range(width)]
        return torch.tensor(spots).T

    assert _last_grid(*coords(0, 1, 2)) == tomadiff.Grid(3, 4, 3)
    assert _last_grid(*coords(5, 0, 1)) == tomadiff.Grid(3, 4, 2)
    assert _last_grid(*coords(7, 9, 0)) == tomadiff.Grid(3, 4, 1)
    assert _last_grid(*torch.cat([coords(5, height=2), coords(0, 1)], dim=1)) is None
