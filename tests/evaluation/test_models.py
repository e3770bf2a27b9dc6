"""Pipelines by name: folders load, anything else is one clear line, and pickles stay shut."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.saved import save
from tests.tiny import build
from tomadiff import embedded
from tomadiff.errors import SettingError, TomaError
from tomadiff.evaluation.runs import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("sdxl", tmp_path_factory.mktemp("models") / "sdxl")


def test_a_folder_generates_what_its_pipeline_generated(folder: Path) -> None:
    tiny, pipe = build("sdxl"), models.load(folder)
    call = {"prompt": "a fox", "num_inference_steps": 2, "output_type": "np", "height": 64, "width": 64}
    generated = [one(**call, generator=torch.Generator().manual_seed(0)).images for one in (tiny.pipe, pipe)]
    assert np.array_equal(*generated)
    assert models.settings(folder) == {}


def test_a_pipeline_is_described(folder: Path) -> None:
    about = models.describe(folder, models.load(folder, device="cpu", dtype="float16"))
    assert about["pipeline"] == "StableDiffusionXLPipeline"
    assert about["scheduler"] == "EulerDiscreteScheduler"
    assert (about["device"], about["dtype"], about["commit"]) == ("cpu", "float16", "")


def test_a_folder_with_half_precision_files_only_loads(tmp_path: Path) -> None:
    build("sd15").pipe.save_pretrained(tmp_path, variant="fp16")
    assert not list(tmp_path.rglob("diffusion_pytorch_model.safetensors"))
    assert models.load(tmp_path).unet is not None


# ---------------------------------------------------------------------------------------------- pickles
class _Harm:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


def test_pickled_weights_are_refused_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    save("sd15", tmp_path, safetensors=False)
    with pytest.raises(models.ModelError, match="--allow-pickle"):
        models.load(tmp_path)
    assert models.load(tmp_path, allow_pickle=True).unet is not None


def test_a_harmful_pickle_is_not_opened(folder: Path, tmp_path: Path) -> None:
    copy, trace = save("sdxl", tmp_path / "copy"), tmp_path / "harmed"
    weights = copy / "unet" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    weights.with_suffix(".bin").write_bytes(pickle.dumps(_Harm(trace)))
    with pytest.raises(models.ModelError, match="pickle"):
        models.load(copy)
    assert not trace.exists()


def test_a_pickle_next_to_safetensors_does_no_harm(tmp_path: Path) -> None:
    copy, trace = save("sd15", tmp_path / "copy"), tmp_path / "harmed"
    (copy / "unet" / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps(_Harm(trace)))
    assert models.load(copy).unet is not None
    assert not trace.exists()


# ---------------------------------------------------------------------------------------------- what is no model
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no-such-model", "There is no model 'no-such-model'"),
        ("./no/such/folder", "no such folder"),
        ("sdxl", "did you mean 'emoji-sdxl'\\? For SDXL itself load the pipeline with diffusers"),
        ("flux", "did you mean 'emoji-flux'\\?"),
        ("owner/never-downloaded", "HF_HUB_OFFLINE forbids"),
    ],
)
def test_what_is_not_there_is_one_line(name: str, expected: str) -> None:
    with pytest.raises(models.ModelError, match=expected) as problem:
        models.load(name)
    assert "\n" not in str(problem.value)


def test_other_folders_and_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(models.ModelError, match=r"no model_index\.json"):
        models.load(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(models.ModelError, match="could not be loaded"):
        models.load(file)


def test_a_broken_folder_is_one_line(tmp_path: Path) -> None:
    save("sd15", tmp_path)
    (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(models.ModelError) as problem:
        models.load(tmp_path)
    assert "\n" not in str(problem.value)
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(models.ModelError, match=r"model_index\.json, line 1: is not JSON"):
        models.load(tmp_path)


def test_embedded_models_without_weights_say_how_to_make_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(TomaError, match="make train"):
        models.load("emoji-sdxl")


# ---------------------------------------------------------------------------------------------- device and dtype
def test_an_absent_or_unknown_device_is_told() -> None:
    with pytest.raises(models.ModelError, match="not known"):
        models.device_of("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(models.ModelError, match="has none"):
            models.device_of("cuda")


@pytest.mark.parametrize(
    ("device", "parts", "expected"),
    [
        ("cpu", {"unet": 1}, torch.float32),
        ("cpu", {"transformer": 1}, torch.float32),
        ("mps", {"unet": 1}, torch.float16),
        ("cuda", {"unet": 1}, torch.float16),
        ("cuda", {"transformer": 1}, torch.bfloat16),
    ],
)
def test_precision_follows_device_and_model(
    device: str, parts: dict[str, int], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert models._dtype(None, torch.device(device), parts) == expected
    assert models._dtype("float32", torch.device(device), parts) == torch.float32


def test_an_unknown_precision_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match="bfloat16"):
        models._dtype("int3", torch.device("cpu"), {})
