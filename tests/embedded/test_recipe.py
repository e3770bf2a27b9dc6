"""The recipe keeps its promises: words are tokens, held-out pairs stay hidden, a resumed run is the same run."""

import pytest
import torch
from diffusers import FluxPipeline
from torch import nn

from training import compose, encoders, flow, flux, objects, text
from training.loop import Recipe, Trainer, scale_at
from training.optimizer import orthogonal


def test_every_word_is_one_token_and_unknown_words_fall_apart():
    clip, t5 = text.clip_tokenizer(), text.t5_tokenizer()
    assert all(len(clip.tokenize(word)) == 1 for word in objects.words())
    assert all(len(t5.tokenize(word)) == 1 for word in objects.words() if word.isalpha())
    assert len(clip.tokenize("zebra")) > 1


def test_captions_fit_and_name_object_and_colour():
    longest = max(len(text.clip_tokenizer()(objects.caption(name, "orange", 2)).input_ids) for name in objects.NAMES)
    assert longest <= text.LENGTH
    assert objects.caption("octopus", "orange") == "an octopus on an orange background"


def test_held_out_pairs_are_a_tenth_and_never_among_the_training_pairs():
    hidden = {tuple(pair) for pair in compose.allowed_pairs(held_out=True).tolist()}
    shown = {tuple(pair) for pair in compose.allowed_pairs(held_out=False).tolist()}
    assert len(hidden) == round(0.1 * len(hidden | shown))
    assert not hidden & shown


def test_backgrounds_have_the_colour_asked_for():
    generator = torch.Generator().manual_seed(0)
    generated = compose.backgrounds(torch.arange(len(objects.COLOURS)), generator).mean((2, 3))
    assert torch.allclose(generated, torch.tensor(list(objects.COLOURS.values())), atol=0.06)


def test_codes_of_objects_and_of_colours_are_orthogonal():
    every = torch.arange(len(objects.NAMES))
    rows = encoders.codes(every, torch.zeros_like(every))[:, : encoders.CODE]
    assert torch.equal(rows @ rows.T, encoders.CODE * torch.eye(len(rows)))


def test_noise_and_image_lie_at_the_ends_of_the_line():
    latents, generator = torch.randn(2, 4, 8, 8), torch.Generator().manual_seed(0)
    noisy, velocity = flow.add_noise(latents, torch.tensor([0.0, 1.0]), generator)
    assert torch.equal(noisy[0], latents[0])
    assert torch.allclose(noisy[1] - velocity[1], latents[1], atol=1e-6)


def test_tokens_are_packed_as_the_pipeline_packs_them():
    latents = torch.randn(2, 4, 64, 64)
    assert torch.equal(flux.pack(latents), FluxPipeline._pack_latents(latents, 2, 4, 64, 64))


def test_positions_match_the_pipeline_and_a_small_grid_spans_the_same_square():
    ids = FluxPipeline._prepare_latent_image_ids(1, 32, 32, "cpu", torch.float32)
    assert torch.equal(flux.positions(32), ids)
    assert torch.equal(flux.positions(16).mean(0), ids.mean(0))


def test_the_learning_rate_rises_stays_and_falls():
    recipe = Recipe("any", steps=1000, warmup=10, decay=0.3)
    rates = [scale_at(step, recipe) for step in (0, 10, 690, 850, 1000)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.51, 0.02])


def test_the_transformer_grows_to_the_full_grid():
    sides = [flux.growth_at(step)[0] for step in range(flux.RECIPE.steps)]
    assert sides == sorted(sides)
    assert sides[0] < sides[-1] == 32


def test_orthogonal_brings_singular_values_near_one():
    values = torch.linalg.svdvals(orthogonal(torch.randn(24, 96, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.5
    assert values.max() < 1.5


def trained(steps, folder, monkeypatch, muon):
    """Weights of a small model after `steps` of a ten-step schedule, going on from any checkpoint in `folder`."""
    monkeypatch.setenv("TOMADIFF_TRAINING_DIR", str(folder))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    trainer = Trainer(model, Recipe("small", steps=10, warmup=2, save_every=1, muon=muon))

    def loss(step, generator):
        return model(torch.randn(8, 4, generator=generator)).square().mean()

    while trainer.step < steps:
        trainer.update(loss)
    trainer.save()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("muon", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch, muon):
    whole = trained(10, tmp_path / "whole", monkeypatch, muon)
    trained(5, tmp_path / "halves", monkeypatch, muon)
    assert torch.equal(trained(10, tmp_path / "halves", monkeypatch, muon), whole)
