"""A run is a folder that survives being killed: what was asked, what was drawn, what was measured.

::

    run/
      run.json            what was asked, versions, machine; written once
      results.jsonl       one line per finished sample, appended and flushed (results-1.jsonl … for more processes)
      images/KEY.png      the pictures, each written to a side file and renamed
      summary.json        what was measured, and report.html and report.md made of it; each written like a picture

A sample counts as finished when its line is complete and its picture is there; anything else is drawn again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tomadiff.errors import TomaError

_SIDE = ".side"  # how files end that are still being written


class RunError(TomaError, RuntimeError):
    """A run's folder cannot be used as asked."""


@dataclass(frozen=True)
class Sample:
    """One picture: what was drawn, how, and what was measured on it.

    Attributes:
        method: name in the catalogue, or ``"baseline"`` for the unmerged model.
        ratio: share of tokens removed; 0 for the baseline.
        prompt: what was asked for.
        seed: of the sampler.
        seconds: how long drawing took.
        flops: counted operations of the denoiser, 0 where they were not counted.
        metrics: by name, such as ``{"psnr": 31.2}``.
        negative: what was to be kept out of the picture.
    """

    method: str
    ratio: float
    prompt: str
    seed: int
    seconds: float = 0.0
    flops: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    negative: str = ""

    @property
    def key(self) -> str:
        """A name that is the same in every run of the same question, and safe as a file name."""
        return sample_key(self.method, self.ratio, self.prompt, self.seed, self.negative)


def sample_key(method: str, ratio: float, prompt: str, seed: int, negative: str = "") -> str:
    """See :attr:`Sample.key`."""
    asked = f"{prompt}\0{negative}" if negative else prompt
    return f"{method}-{ratio:g}-{sha256(asked.encode()).hexdigest()[:12]}-{seed}"


class Run:
    """A run's folder, opened for reading, or for going on with it."""

    def __init__(self, folder: Path, process: int = 0) -> None:
        self.folder, self.process = Path(folder), process
        self.images = self.folder / "images"

    # ------------------------------------------------------------------------------------------ begin
    @classmethod
    def begin(cls, folder: Path, config: Mapping[str, Any], stamp: Mapping[str, Any], process: int = 0) -> Run:
        """Open a new folder, or go on in one that was begun with the same ``config``."""
        run = cls(folder, process)
        try:
            run.images.mkdir(parents=True, exist_ok=True)
            if (run.folder / "run.json").exists():
                run._require_same(config)
            elif process == 0:
                about = {"config": dict(config), "stamp": dict(stamp)}
                write_whole(run.folder / "run.json", json.dumps(about, indent=2))
            if process == 0:
                run._sweep()
        except OSError as problem:
            raise RunError(
                f"Cannot write to {folder}: {problem.strerror or problem}; choose another folder."
            ) from problem
        return run

    def _sweep(self) -> None:
        """Remove files that a kill cut short; they were never counted."""
        for torn in (*self.images.glob(".*.png"), *self.folder.glob(f".*{_SIDE}")):
            torn.unlink(missing_ok=True)

    def _require_same(self, config: Mapping[str, Any]) -> None:
        before, now = self.config, json.loads(json.dumps(dict(config)))
        different = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        if different:
            was = {name: f" was {before[name]!r}" for name in different if isinstance(before.get(name), str)}
            told = ", ".join(name + was.get(name, "") for name in different)
            raise RunError(
                f"{self.folder} holds a run with other settings ({told}); choose another folder, or delete this one."
            )

    @property
    def config(self) -> dict[str, Any]:
        """What was asked."""
        return dict(self._about()["config"])

    @property
    def stamp(self) -> dict[str, Any]:
        """Machine and versions."""
        return dict(self._about()["stamp"])

    def _about(self) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise RunError(f"{self.folder} is not a run: it has no readable run.json.") from problem
        return about

    # ------------------------------------------------------------------------------------------ samples
    def samples(self) -> dict[str, Sample]:
        """Finished samples by key; a torn last line, or one without its picture, does not count."""
        found = {}
        for path in sorted(self.folder.glob("results*.jsonl")):
            for line in path.read_bytes().splitlines(keepends=True):
                sample = _parse(line)
                if sample is not None and self.image_path(sample.key).exists():
                    found[sample.key] = sample
        return found

    def add(self, sample: Sample, image: Image.Image, about: Mapping[str, Any] | None = None) -> None:
        """Record a finished sample: the picture first, then its line, each complete or not at all."""
        note = PngInfo()
        note.add_itxt("tomadiff", json.dumps({**asdict(sample), **(about or {})}))
        side = self.images / f".{sample.key}.{os.getpid()}.png"
        try:
            image.save(side, pnginfo=note)
            side.replace(self.image_path(sample.key))
        finally:  # a full disk leaves a torn file, which would only fill it further
            side.unlink(missing_ok=True)
        self.append(sample)

    def append(self, sample: Sample) -> None:
        """Record a line alone, for a sample whose picture is there already (later lines replace earlier ones)."""
        name = "results.jsonl" if self.process == 0 else f"results-{self.process}.jsonl"
        with (self.folder / name).open("ab") as file:
            if _ends_torn(self.folder / name):
                file.write(b"\n")  # a line that a kill cut short stays alone
            file.write(json.dumps(asdict(sample)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def image_path(self, key: str) -> Path:
        """Where the picture of a sample is."""
        return self.images / f"{key}.png"

    def image(self, key: str) -> Image.Image:
        """The picture of a sample."""
        with Image.open(self.image_path(key)) as image:
            return image.convert("RGB")


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, whenever we are killed."""
    side = path.with_name(f".{path.name}.{os.getpid()}{_SIDE}")
    try:
        side.write_text(text, encoding="utf-8")
        side.replace(path)
    finally:
        side.unlink(missing_ok=True)


def note_of(path: Path) -> dict[str, Any]:
    """What a picture of a run says about how it was drawn; enough to draw it again."""
    with Image.open(path) as image:
        text = getattr(image, "text", {}).get("tomadiff")
    if text is None:
        raise RunError(f"{path} does not say how it was drawn; only pictures of tomadiff do.")
    note: dict[str, Any] = json.loads(text)
    return note


def _parse(line: bytes) -> Sample | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return Sample(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def pending(questions: Iterator[Sample] | list[Sample], run: Run) -> list[Sample]:
    """The samples of a question list that are not finished yet, in order."""
    done = run.samples()
    return [sample for sample in questions if sample.key not in done]
