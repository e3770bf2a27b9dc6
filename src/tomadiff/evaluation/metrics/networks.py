"""Networks by name: CLIP, DINO, Inception, LPIPS and the judge that ships with the package.

A network is opened by name from :func:`openers`, and one that cannot be had raises :class:`NetworkUnavailable`, so that
its metrics can say so while the others run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tomadiff import embedded
from tomadiff.errors import require_choice
from tomadiff.evaluation.metrics.features import AnyNetwork, NetworkUnavailable, Opener, to_bytes

_INCEPTION = "inception-v3-compat"  # what torch-fidelity calls it


@dataclass(frozen=True)
class Gives:
    """Which metrics come out of a network, by name; ``None`` where that kind is not wanted of it."""

    pair: str | None = None
    text: str | None = None
    frechet: str | None = None
    kernel: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(name for name in (self.pair, self.text, self.frechet, self.kernel) if name)


@dataclass(frozen=True)
class Known:
    """A network that is opened by name.

    Attributes:
        source: where it comes from by default.
        open: ``(source, device)`` → the network.
        advice: what to do where it cannot be had.
        gives: its metrics; ``None``: all kinds, under its own name.
    """

    source: str
    open: Callable[[str, str], AnyNetwork]
    advice: str
    gives: Gives | None = None


def gives(name: str) -> Gives:
    """The metrics of a network; every kind, of one that is not known or says nothing (such as emoji-judge)."""
    known = NETWORKS[name].gives if name in NETWORKS else None
    return known or Gives(pair=name, text=f"{name}_t", frechet=f"{name}_fid", kernel=f"{name}_kid")


# ---------------------------------------------------------------------------------------------- open
def openers(
    names: Iterable[str] | None = None, sources: Mapping[str, str | Path] | None = None, device: str = "cpu"
) -> dict[str, Opener]:
    """How to open each network; nothing is loaded or downloaded until one is called.

    Args:
        names: of "clip", "dino", "judge", "inception", "lpips"; all unless told.
        sources: where to take one from instead: a local folder or a hub id for clip and dino, a file of weights for
            inception, "alex", "vgg" or "squeeze" for lpips.
        device: where to run.
    """
    wanted, own = tuple(NETWORKS if names is None else names), sources or {}
    for name in (*wanted, *own):
        require_choice("network", name, tuple(NETWORKS))
    return {name: partial(_open, name, str(own.get(name, NETWORKS[name].source)), device) for name in wanted}


def at_hand() -> tuple[str, ...]:
    """Networks whose weights are on this machine in their usual place, so that nobody is asked for anything."""
    from huggingface_hub import try_to_load_from_cache

    needed = ("config.json", "preprocessor_config.json", "model.safetensors")
    cached = (
        name
        for name in ("clip", "dino")
        if all(isinstance(try_to_load_from_cache(NETWORKS[name].source, file), str) for file in needed)
    )
    return (*(("judge",) if "emoji-judge" in embedded.available() else ()), *cached)


def _open(name: str, source: str, device: str) -> AnyNetwork:
    try:
        return NETWORKS[name].open(source, device)
    except embedded.MissingWeightsError as problem:
        raise NetworkUnavailable(str(problem)) from problem
    except Exception as problem:  # hubs, caches, missing extras and broken files raise anything
        reason = f"{name} ({source}) cannot be had here: {_first_line(problem)} {NETWORKS[name].advice}"
        raise NetworkUnavailable(reason) from problem


def _first_line(problem: BaseException) -> str:
    line = next(iter(str(problem).strip().splitlines()), type(problem).__name__).strip()
    return line if line.endswith((".", "!", "?")) else f"{line}."


# ---------------------------------------------------------------------------------------------- transformers
class Clip:
    """A ``CLIPModel`` of transformers with its processor: images and prompts into one space."""

    def __init__(self, model: Any, processor: Any, device: str = "cpu") -> None:
        self.model, self.processor, self.device = model.to(device).eval(), processor, device

    @classmethod
    def open(cls, source: str, device: str = "cpu") -> Clip:
        """From a local folder or a hub id; pickled weights are not opened."""
        from transformers import CLIPModel, CLIPProcessor

        return cls(_fetched(CLIPModel, source, use_safetensors=True), _fetched(CLIPProcessor, source), device)

    @classmethod
    def open_judge(cls, source: str = "", device: str = "cpu") -> Clip:
        """The small judge that ships with the package; ``source`` is its name and changes nothing."""
        del source
        return cls(embedded.load("emoji-judge"), embedded.load_judge_processor(), device)

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Projected features ``(N, D)``."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        return _pooled(self.model.get_image_features(**inputs))

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """Projected features ``(N, D)``; a prompt longer than the network reads is cut, as is customary."""
        length = self.model.config.text_config.max_position_embeddings
        inputs = self.processor(  # always the full length, so that a prompt's neighbours cannot matter
            text=list(prompts), padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        ).to(self.device)
        return _pooled(self.model.get_text_features(**inputs))


def _pooled(output: Any) -> Tensor:
    """Transformers 4 gives the features themselves, 5 an object that holds them."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


class Dino:
    """DINO or DINOv2 of transformers: the class token of the last layer."""

    def __init__(self, model: Any, processor: Any, device: str = "cpu") -> None:
        self.model, self.processor, self.device = model.to(device).eval(), processor, device

    @classmethod
    def open(cls, source: str, device: str = "cpu") -> Dino:
        """From a local folder or a hub id; pickled weights are not opened."""
        from transformers import AutoImageProcessor, AutoModel

        return cls(_fetched(AutoModel, source, use_safetensors=True), _fetched(AutoImageProcessor, source), device)

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Class tokens ``(N, D)``."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        tokens: Tensor = self.model(**inputs).last_hidden_state
        return tokens[:, 0]


def _fetched(kind: Any, source: str, **settings: Any) -> Any:
    """From a folder or the cache if it is there, else from the hub."""
    if Path(source).is_dir():
        return kind.from_pretrained(source, **settings)
    try:
        return kind.from_pretrained(_cached(source), **settings)
    except OSError:  # nothing there, or a download that was cut short
        _require_hub(source)
    return kind.from_pretrained(source, **settings)


def _cached(source: str) -> Path:
    """The folder of a downloaded model: given that, transformers has no reason to ask the hub for anything."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, "config.json")
    if not isinstance(found, str):
        raise FileNotFoundError(source)
    return Path(found).parent


def _require_hub(source: str) -> None:
    """Ask the hub once: transformers would ask a silent one a dozen times, which takes a minute."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(source, timeout=10)
    except Exception as problem:
        reason = f"it is not on this machine, and the hub cannot be asked for it ({_first_line(problem)[:-1]})"
        raise FileNotFoundError(reason) from problem


# ---------------------------------------------------------------------------------------------- torchmetrics
class Inception:
    """The Inception network that FID and KID are defined by, as torch-fidelity ported it from TensorFlow."""

    def __init__(self, source: str = _INCEPTION, device: str = "cpu") -> None:
        weights = source if Path(source).is_file() else None
        if weights is not None:  # torch-fidelity opens it as a pickle, which before torch 2.6 may run any code
            torch.load(weights, map_location="cpu", weights_only=True)
        from torchmetrics.image.fid import NoTrainInceptionV3

        self.device = device
        # Resizing without antialiasing is how published FIDs are made; torchmetrics' own default is another.
        self.model = NoTrainInceptionV3(_INCEPTION, ["2048"], weights, antialias=False).to(device)

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        """Pool features ``(N, 2048)``; one image at a time, for they may differ in size."""
        return torch.cat([self.model(to_bytes([image]).to(self.device)) for image in images])


class Lpips:
    """Learned perceptual distance (Zhang et al., 2018); the heads come with torchmetrics, backbones are fetched.

    Formula and heads equal those of the authors' package on random layers; ``docs/adding/a_metric.md`` says what was
    not compared.
    """

    def __init__(self, source: str = "alex", device: str = "cpu") -> None:
        from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

        net: Any = source  # torchmetrics checks it
        self.device = device
        self.model = LearnedPerceptualImagePatchSimilarity(net, normalize=True).to(device).eval()

    def distances(self, images: Tensor, others: Tensor) -> Tensor:
        """Distances ``(B,)`` of images ``(B, 3, H, W)`` in [0, 1]."""
        with torch.inference_mode():
            apart: Tensor = self.model.net(images.to(self.device), others.to(self.device), normalize=True)
        return apart.flatten().cpu()


# ---------------------------------------------------------------------------------------------- all of them
_LOCAL = "Give a local folder that transformers can load, with its weights as safetensors."

# The paper names the kinds (CLIP, DINO), not the sizes.
NETWORKS = {
    "clip": Known("openai/clip-vit-large-patch14", Clip.open, _LOCAL, Gives(pair="clip_i", text="clip_t")),
    "dino": Known("facebook/dino-vitb16", Dino.open, _LOCAL, Gives(pair="dino")),
    "judge": Known("emoji-judge", Clip.open_judge, "`make train` makes it."),
    "inception": Known(
        _INCEPTION,
        Inception,
        "It needs torchmetrics, torch-fidelity and torchvision, and a file of weights or a connection.",
        Gives(frechet="fid", kernel="kid"),
    ),
    "lpips": Known(
        "alex",
        Lpips,
        "It needs torchmetrics and torchvision, and a connection the first time.",
        Gives(pair="lpips"),
    ),
}
"""By name; another one is added here."""
