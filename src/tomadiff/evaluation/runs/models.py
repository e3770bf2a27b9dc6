"""Pipelines by name: the embedded ones, a local diffusers folder, or a model of the hub.

Weights that are pickles can run code when they are opened, so they are refused unless the user says otherwise.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tomadiff import embedded
from tomadiff.errors import TomaError, require_choice
from tomadiff.utils.reading import OBJECT, read_json

EMBEDDED = ("emoji-sdxl", "emoji-flux", *embedded.FEW_STEP)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLE = (
    "{} is a pickle, which can run any code when it is opened; get the model as safetensors, or pass --allow-pickle "
    "if you trust whoever made it."
)
_DENOISERS = ("transformer", "unet")


class ModelError(TomaError, RuntimeError):
    """A model cannot be loaded as asked."""


def load(
    model: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    allow_pickle: bool = False,
) -> Any:
    """A pipeline that is ready to generate.

    Args:
        model: one of ``EMBEDDED``, a folder saved by diffusers, a hub id such as ``"owner/name"``, or a checkpoint in a
            single file.
        device: ``None`` takes the GPU if there is one.
        dtype: ``None`` takes half precision on a GPU (bfloat16 for transformers, which overflow in float16) and
            float32 on the CPU.
        allow_pickle: open weights that are pickles; they can run any code, so only from people you trust.
    """
    name, place = str(model), device_of(device)
    if name in EMBEDDED and not Path(name).is_dir():
        wanted = _dtype(dtype, place, _parts(embedded.folder(embedded.base(name))))
        with quiet():
            pipe = embedded.load(name, dtype=wanted)
    else:
        pipe = (_load_file if Path(name).is_file() else _load)(name, place, dtype, allow_pickle)
    pipe.to(place)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def settings(model: str | Path) -> dict[str, Any]:
    """What the pipeline is best called with; empty where the pipeline's own defaults are right."""
    name = str(model)
    return embedded.settings(name) if name in EMBEDDED and not Path(name).is_dir() else {}


def describe(model: str | Path, pipe: Any) -> dict[str, str]:
    """What identifies a loaded pipeline: name, class, commit on the hub, scheduler, device and dtype."""
    return {
        "model": str(model),
        "pipeline": type(pipe).__name__,
        "commit": _commit(pipe),
        "scheduler": type(pipe.scheduler).__name__,
        "device": torch.device(pipe.device).type,
        "dtype": str(denoiser(pipe).dtype).removeprefix("torch."),
    }


def denoiser(pipe: Any) -> Any:
    """The transformer or UNet of a pipeline; of anything else, the thing itself."""
    found = (getattr(pipe, part, None) for part in _DENOISERS)
    return next((part for part in found if part is not None), pipe)


def _commit(pipe: Any) -> str:
    """The hub keeps a model in ``…/snapshots/COMMIT/…``; a folder of one's own has no commit."""
    parts = Path(str(getattr(getattr(denoiser(pipe), "config", None), "_name_or_path", ""))).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else ""


# ---------------------------------------------------------------------------------------------- device and dtype
def device_of(device: str | torch.device | None) -> torch.device:
    """The device of that name, or the best there is; raises if this machine has none."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as problem:
        raise ModelError(f"device={str(device)!r} is not known; give cpu, cuda, cuda:1 or mps.") from problem
    present = {"cuda": torch.cuda.is_available, "mps": _has_mps}.get(place.type, lambda: True)
    if not present():
        raise ModelError(f"device={str(device)!r} was asked for, but this machine or this PyTorch has none; try cpu.")
    return place


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def _dtype(dtype: str | torch.dtype | None, device: torch.device, parts: Mapping[str, Any]) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is not None:
        require_choice("dtype", dtype, tuple(DTYPES))
        return DTYPES[dtype]
    if device.type == "cuda":
        wide = "transformer" in parts and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if wide else torch.float16
    return torch.float16 if device.type == "mps" else torch.float32


# ---------------------------------------------------------------------------------------------- folders and the hub
@contextmanager
def quiet() -> Iterator[None]:
    """Loading prints bars and notes by the dozen; what matters of them is in our one line."""
    import diffusers
    import transformers

    logs = (diffusers.utils.logging, transformers.utils.logging)
    before, hub = [log.get_verbosity() for log in logs], logging.getLogger("huggingface_hub")
    for log in logs:
        log.set_verbosity(50)  # critical
        log.disable_progress_bar()
    tells = hub.level
    hub.setLevel(logging.CRITICAL)  # it tells every retry
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hub.setLevel(tells)
        for log, verbosity in zip(logs, before, strict=True):
            log.set_verbosity(verbosity)
            log.enable_progress_bar()


def _load(name: str, device: torch.device, dtype: str | torch.dtype | None, allow_pickle: bool) -> Any:
    require_model(name, allow_pickle)
    from diffusers import DiffusionPipeline  # after the check: it takes seconds

    folder = Path(name)
    wanted = _dtype(dtype, device, _parts(folder) if folder.is_dir() else _hub_parts(name))
    options: dict[str, Any] = {"torch_dtype": wanted, "use_safetensors": None if allow_pickle else True}
    if folder.is_dir():
        options |= {"local_files_only": True, "variant": _variant(folder)}
    try:
        with quiet():
            return DiffusionPipeline.from_pretrained(name, **options)
    except (OSError, ValueError, ImportError) as problem:
        raise ModelError(_why(name, problem)) from problem


def _load_file(name: str, device: torch.device, dtype: str | torch.dtype | None, allow_pickle: bool) -> Any:
    """A whole checkpoint in one file; what kind of pipeline it is, diffusers tells by its weights."""
    require_model(name, allow_pickle)
    import diffusers
    from diffusers.loaders import single_file_utils as files

    try:
        with quiet():
            source = files.fetch_diffusers_config(files.load_single_file_checkpoint(name))
            place = source["pretrained_model_name_or_path"]
            parts = _hub_parts(place)
            kind = getattr(diffusers, parts["_class_name"])
            return kind.from_single_file(name, config=place, torch_dtype=_dtype(dtype, device, parts))
    except files.SingleFileComponentError as problem:
        raise ModelError(
            f"{name} holds a part of a pipeline only; load the part with from_single_file in Python, give it to "
            "from_pretrained of the whole pipeline, and that to tomadiff.apply."
        ) from problem
    except ModelError:
        raise
    except Exception as problem:  # whatever a file that is no checkpoint leads to
        raise ModelError(f"{name} could not be loaded: {' '.join(str(problem).split())[:300]}") from problem


def require_model(name: str, allow_pickle: bool = False) -> None:
    """Raise for anything that is plainly no model, before the hub is asked for it and anything is loaded."""
    path = Path(name)
    if name in EMBEDDED and not path.is_dir():
        embedded.folder(name)
    elif path.is_dir():
        _require_pipeline(path, allow_pickle)
    elif path.is_file():
        _require_checkpoint(path, allow_pickle)
    elif f"emoji-{name}" in EMBEDDED:
        raise ModelError(embedded.not_embedded(name))
    elif name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelError(
            f"There is no model {name!r}: no such folder, not embedded ({', '.join(EMBEDDED)}), and not a hub id "
            "such as owner/name."
        )


def _require_checkpoint(file: Path, allow_pickle: bool) -> None:
    if file.suffix in _PICKLES and not allow_pickle:
        raise ModelError(_PICKLE.format(file))
    if file.suffix not in (".safetensors", *_PICKLES):
        raise ModelError(f"{file} is no checkpoint; give a .safetensors file, a saved folder or a hub id.")


def _require_pipeline(folder: Path, allow_pickle: bool) -> None:
    if not (folder / "model_index.json").is_file():
        raise ModelError(f"{folder} is not a diffusers pipeline: it has no model_index.json.")
    if not allow_pickle:
        _require_safetensors(folder)


def _parts(folder: Path) -> dict[str, Any]:
    """The components that ``model_index.json`` names."""
    path = folder / "model_index.json"
    parts = read_json(path, ModelError)
    if not OBJECT.fits(parts):
        raise ModelError(f"{path}: must be an object, as diffusers writes it.")
    return dict(parts)


def _hub_parts(name: str) -> dict[str, Any]:
    """The same from the hub, or from its local copy; offline, nothing is asked for."""
    from diffusers import DiffusionPipeline

    try:
        with quiet():
            parts: dict[str, Any] = DiffusionPipeline.load_config(name)
    except (OSError, ValueError) as problem:
        raise ModelError(_why(name, problem)) from problem
    return parts


def _components(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.iterdir()) if path.is_dir())


def _require_safetensors(folder: Path) -> None:
    for part in _components(folder):
        files = [path for path in part.iterdir() if path.is_file()]
        pickles = [path.name for path in files if path.suffix in _PICKLES]
        if pickles and not any(path.suffix == ".safetensors" for path in files):
            raise ModelError(_PICKLE.format(part / pickles[0]))


def _variant(folder: Path) -> str | None:
    """``"fp16"`` where only those files were downloaded."""
    weights = [path.name for part in _components(folder) for path in part.glob("*.safetensors")]
    return "fp16" if weights and all(".fp16." in name for name in weights) else None


_NO_NETWORK = ("couldn't connect", "Cannot reach", "ConnectError", "Name or service not known", "name resolution")


def _why(name: str, problem: Exception) -> str:
    """One line out of the many that a failed download prints."""
    from huggingface_hub import constants

    text = " ".join(str(problem).split())
    if "safetensors" in text and "pickle" not in text:
        return f"{name} has no weights as safetensors; pass --allow-pickle if you trust whoever made it. ({text[:200]})"
    if constants.HF_HUB_OFFLINE and not Path(name).exists():
        return f"{name} is not on this machine, and HF_HUB_OFFLINE forbids to download it."
    if any(word in reason for reason in _reasons(problem) for word in _NO_NETWORK):
        return f"{name} is not on this machine, and the hub cannot be reached; get it where there is a network."
    return f"{name} could not be loaded: {text[:300]}"


def _reasons(problem: BaseException | None) -> Iterator[str]:
    """What went wrong, and what that came from: libraries say "no such file" where there is no network."""
    while problem is not None:
        yield f"{type(problem).__name__}: {problem}"
        problem = problem.__cause__ or problem.__context__
