"""The embedded pipelines load offline and generate: same seed same image, other seed another."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tomadiff import embedded
from tomadiff.errors import SettingError

PIPELINES = ("emoji-sdxl", "emoji-flux")
PROMPT = "a fox on a blue background"


def skip_unless_present(name):
    if name not in embedded.available():
        pytest.skip(f"the weights of emoji-{name} are not trained yet")


@pytest.fixture(params=PIPELINES)
def generating(request):
    """A pipeline's name and a function that generates one image (h, w, 3) from a seed, in a few steps."""
    skip_unless_present(request.param)
    pipe = embedded.load(request.param)
    settings = embedded.settings(request.param) | dict(num_inference_steps=4)

    def generate(seed):
        return pipe(PROMPT, generator=torch.Generator().manual_seed(seed), output_type="np", **settings).images[0]

    return request.param, generate


@pytest.mark.parametrize("name", [*embedded.NAMES, *embedded.FEW_STEP])
def test_every_card_states_a_licence(name):
    cards = Path(__file__).parents[2] / "training" / "cards"
    for card in (cards / f"{name}.md", Path(embedded.__file__).parent / name / "README.md"):
        assert card.read_text(encoding="utf-8").startswith("---\nlicense: mit\n---\n"), card


@pytest.mark.parametrize("load", [lambda: embedded.load("emoji-sdxl"), embedded.load_judge_processor])
def test_transformers_that_are_too_old_are_told_in_one_line(load, monkeypatch):
    monkeypatch.setattr(embedded, "version", lambda _: "4.57.6")
    with pytest.raises(embedded.OldVersionError, match=r"transformers 5 or newer, and 4\.57\.6"):
        load()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SettingError, match="emoji-sdxl"):
        embedded.load("sd15")


@pytest.mark.parametrize(("name", "real"), [("sdxl", "For SDXL itself"), ("flux", "For Flux.1 itself"), ("judge", "")])
@pytest.mark.parametrize("use", [embedded.folder, embedded.settings, embedded.load])
def test_names_of_real_models_are_not_taken_for_embedded_ones(use, name, real):
    with pytest.raises(
        SettingError, match=rf"'{name}' is not an embedded model; did you mean 'emoji-{name}'\?.*{real}"
    ):
        use(name)


def test_missing_weights_say_how_to_make_them(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "__file__", str(tmp_path / "__init__.py"))
    assert embedded.available() == ()
    with pytest.raises(embedded.MissingWeightsError, match="make train"):
        embedded.load("emoji-sdxl")


def test_an_image_is_128_square_and_depends_on_the_seed_alone(generating):
    _, generate = generating
    first, again, other = generate(0), generate(0), generate(1)
    assert first.shape == (128, 128, 3)
    assert np.isfinite(first).all()
    assert np.array_equal(first, again)
    assert np.abs(first - other).mean() > 0.01


def test_attention_sees_at_least_1024_tokens():
    skip_unless_present("emoji-sdxl")
    pipe = embedded.load("emoji-sdxl")
    seen = []
    for name, module in pipe.unet.named_modules():
        if name.endswith("attn1"):
            module.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    pipe(PROMPT, **embedded.settings("emoji-sdxl") | dict(num_inference_steps=1))
    assert max(seen) >= 1024


def test_words_outside_the_vocabulary_do_not_crash():
    skip_unless_present("emoji-sdxl")
    pipe = embedded.load("emoji-sdxl")
    settings = embedded.settings("emoji-sdxl") | dict(num_inference_steps=1, output_type="np")
    assert pipe("Ein Zebra 🦓 auf grünem Grund, très joli!", **settings).images.shape == (1, 128, 128, 3)


def test_the_judge_tells_blue_from_red():
    skip_unless_present("emoji-judge")
    judge, process = embedded.load("emoji-judge"), embedded.load_judge_processor()
    plain = np.zeros((128, 128, 3), dtype=np.uint8)
    plain[..., 2] = 220
    captions = ["a fox on a blue background", "a fox on a red background"]
    inputs = process(text=captions, images=[plain], return_tensors="pt", padding="max_length")
    with torch.no_grad():
        blue, red = judge(**inputs).logits_per_image[0]
    assert blue > red
