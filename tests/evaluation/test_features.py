"""Networks through the code that users run, with tiny random weights; those that need a download say so."""

import functools
import importlib.util
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.evaluation.networks import image, save_clip, save_dino
from tomadiff import embedded
from tomadiff.errors import SettingError
from tomadiff.evaluation.metrics.features import (
    Network,
    NetworkUnavailable,
    PairNetwork,
    TextNetwork,
    batches,
    image_features,
    text_features,
    to_pixels,
)
from tomadiff.evaluation.metrics.networks import NETWORKS, Clip, Lpips, openers

IMAGES = [image(0), image(1), image(2, (48, 32)), image(3, (32, 80)), image(4)]  # sizes may differ
PROMPTS = ["a fox", "a much longer prompt about an owl that is cut off at the end", "", "naïve 🦊"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("networks")
    return {
        "clip": save_clip(top / "clip"),
        "vit": save_dino(top / "vit"),
        "dinov2": save_dino(top / "dinov2", "dinov2"),
    }


@pytest.mark.parametrize(("name", "saved"), [("clip", "clip"), ("dino", "vit"), ("dino", "dinov2")])
def test_features_of_images_do_not_depend_on_the_batch(name: str, saved: str, folders: dict[str, Path]) -> None:
    network = openers([name], {name: folders[saved]})[name]()
    assert isinstance(network, Network)
    assert isinstance(network, TextNetwork) == (name == "clip")
    assert not isinstance(network, PairNetwork)
    together, alone = image_features(network, iter(IMAGES), batch=3), image_features(network, IMAGES, batch=1)
    assert together.shape == (5, 16 if name == "clip" else 32)
    assert torch.allclose(together, alone, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_clip_gives_what_the_model_gives(folders: dict[str, Path]) -> None:
    from transformers import CLIPModel, CLIPProcessor

    model, processor = (kind.from_pretrained(folders["clip"]) for kind in (CLIPModel, CLIPProcessor))
    network = Clip.open(str(folders["clip"]))
    inputs = processor(text=PROMPTS[:1], images=IMAGES[:1], return_tensors="pt")
    with torch.no_grad():
        whole = model(**inputs)
    shown, read = image_features(network, IMAGES[:1]), text_features(network, PROMPTS[:1])
    assert torch.allclose(nn.functional.normalize(shown), whole.image_embeds, atol=1e-5)
    assert torch.allclose(nn.functional.normalize(read), whole.text_embeds, atol=1e-5)


def test_features_of_prompts_do_not_depend_on_the_batch(folders: dict[str, Path]) -> None:
    network = Clip.open(str(folders["clip"]))
    together, alone = text_features(network, PROMPTS), text_features(network, PROMPTS, batch=1)
    assert together.shape == (4, 16)
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_downloaded_network_is_taken_from_the_cache(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    cache = tmp_path / "models--owner--clip"
    shutil.copytree(folders["clip"], cache / "snapshots" / "0123")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123")
    look = functools.partial(huggingface_hub.try_to_load_from_cache, cache_dir=tmp_path)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", look)
    network, here = openers(["clip"], {"clip": "owner/clip"})["clip"](), Clip.open(str(folders["clip"]))
    assert isinstance(network, Clip)
    assert torch.equal(image_features(network, IMAGES), image_features(here, IMAGES))


def test_the_judge_runs_through_the_same_code(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "folder", lambda name: folders["clip"])
    judge, clip = openers(["judge"])["judge"](), Clip.open(str(folders["clip"]))
    assert isinstance(judge, TextNetwork)
    assert torch.equal(image_features(judge, IMAGES), image_features(clip, IMAGES))


def test_pixels_keep_their_values() -> None:
    pixels = to_pixels([image(0), image(1)])
    assert pixels.shape == (2, 3, 32, 32)
    assert (pixels[1, :, 3, 5] * 255).round().tolist() == list(image(1).getpixel((5, 3)))


def test_batches_leave_nothing_out() -> None:
    assert list(batches(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]
    assert list(batches([], 2)) == []


# ---------------------------------------------------------------------------------------------- what cannot be had
@pytest.mark.parametrize("name", ["clip", "dino"])
def test_a_network_that_is_not_here_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        NetworkUnavailable, match=rf"^{name} \({NETWORKS[name].source}\) cannot be had here: .*local folder"
    ):
        openers([name])[name]()
    with pytest.raises(NetworkUnavailable, match="safetensors") as caught:
        openers([name], {name: tmp_path})[name]()
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_opened(folders: dict[str, Path], tmp_path: Path) -> None:
    for path in folders["clip"].iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(NetworkUnavailable, match="safetensors"):
        openers(["clip"], {"clip": tmp_path})["clip"]()


class Evil:
    """Leaves a file behind wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_weights_that_run_code_are_not_opened(tmp_path: Path) -> None:
    torch.save({"weight": Evil(tmp_path / "ran")}, tmp_path / "inception.pth")
    with pytest.raises(NetworkUnavailable, match=r"[Ww]eights.only"):
        openers(["inception"], {"inception": tmp_path / "inception.pth"})["inception"]()
    assert not (tmp_path / "ran").exists()


def test_a_judge_without_weights_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(NetworkUnavailable, match="weights of emoji-judge are not in"):
        openers(["judge"])["judge"]()


@pytest.mark.parametrize("name", ["inception", "lpips"])
def test_torchmetrics_networks_without_torchvision_say_so(name: str) -> None:
    if importlib.util.find_spec("torchvision"):
        pytest.skip("torchvision is installed here")
    with pytest.raises(NetworkUnavailable, match=rf"^{name} .* cannot be had here: .*torchvision"):
        openers([name])[name]()


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(SettingError, match="network='vgg' is not known"):
        openers(["vgg"])
    with pytest.raises(SettingError, match="network='klip' is not known"):
        openers(["clip"], {"klip": "somewhere"})


# ---------------------------------------------------------------------------------------------- LPIPS
def alexnet(**_: object) -> nn.Module:
    """The convolutions of AlexNet with random weights, as torchvision arranges them."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    model = nn.Module()
    model.features = nn.Sequential(*layers)
    return model


@pytest.fixture
def lpips(monkeypatch: pytest.MonkeyPatch) -> Lpips:
    """LPIPS with random convolutions under the published heads, which come with torchmetrics."""
    functional = pytest.importorskip("torchmetrics.functional.image.lpips")
    metric = pytest.importorskip("torchmetrics.image.lpip")
    models = types.SimpleNamespace(alexnet=alexnet, AlexNet_Weights=types.SimpleNamespace(DEFAULT=None))
    stand_in = types.ModuleType("torchvision")
    stand_in.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", stand_in)
    for module in (functional, metric):
        monkeypatch.setattr(module, "_TORCHVISION_AVAILABLE", True)
    return Lpips()


def layer_outputs(images: torch.Tensor) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """What the ReLUs of :func:`alexnet` give for images in [0, 1], which LPIPS shifts and scales first."""
    shift, scale = (torch.tensor(v).view(1, 3, 1, 1) for v in ([-0.030, -0.088, -0.188], [0.458, 0.448, 0.450]))
    x, seen = (2 * images - 1 - shift) / scale, []
    for layer in alexnet().features:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            seen.append(x.detach().double().numpy())
    return seen


def test_lpips_equals_its_formula(lpips: Lpips) -> None:
    """Zhang et al., equation 1, written once more in NumPy, on the same convolutions and heads."""
    ours, theirs = (to_pixels([image(seed, (64, 64), noise) for seed in range(2)]) for noise in (0.0, 0.3))
    heads, expected = lpips.model.net.state_dict(), np.zeros(2)
    for level, pair in enumerate(zip(layer_outputs(ours), layer_outputs(theirs), strict=True)):
        x, y = (side / np.sqrt((side**2).sum(1, keepdims=True) + 1e-16) for side in pair)
        weights = heads[f"lin{level}.model.1.weight"].double().numpy().reshape(1, -1, 1, 1)
        expected += (weights * (x - y) ** 2).sum(1).mean((1, 2))
    assert np.allclose(lpips.distances(ours, theirs).numpy(), expected, atol=1e-4)
    assert expected.min() > 1e-3


def test_lpips_looks_at_each_pair_alone(lpips: Lpips) -> None:
    assert isinstance(lpips, PairNetwork)
    assert not isinstance(lpips, Network)
    ours, theirs = (to_pixels([image(seed, (64, 64), noise) for seed in range(3)]) for noise in (0.0, 0.2))
    alone = torch.cat([lpips.distances(ours[i : i + 1], theirs[i : i + 1]) for i in range(3)])
    assert torch.allclose(lpips.distances(ours, theirs), alone, atol=1e-5)
    assert lpips.distances(ours, ours).tolist() == [0] * 3


def test_lpips_equals_the_package_of_its_authors(lpips: Lpips) -> None:
    """Their code and their heads, on the same random convolutions; `pip install --no-deps lpips==0.1.4` to run it."""
    theirs = pytest.importorskip("lpips", reason="the package of the authors is not installed")
    oracle = theirs.LPIPS(net="alex", verbose=False)
    ours, others = (to_pixels([image(seed, (64, 64), noise) for seed in range(3)]) for noise in (0.0, 0.2))
    with torch.no_grad():
        expected = oracle(ours, others, normalize=True).flatten()
    assert expected.min() > 1e-3
    assert torch.allclose(lpips.distances(ours, others), expected, atol=1e-5)
