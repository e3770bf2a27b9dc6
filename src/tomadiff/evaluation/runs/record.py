"""A run is a folder that survives being killed: what was asked, what was generated, what was measured.

::

    run/
      run.json            what was asked, versions, machine; written once
      results.jsonl       one line per finished sample, appended and flushed (results-1.jsonl … for more processes)
      images/KEY.png      the images, each written to a side file and renamed
      summary.json        what was measured, and report.html and report.md made of it; each written like an image

A sample counts as finished when its line is complete and its image is there; anything else is generated again. A
run may come from elsewhere: what its files hold is checked, and nothing outside of its folder is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tomadiff.errors import TomaError
from tomadiff.evaluation.runs.images import image_text, read_image, save_image
from tomadiff.utils.reading import (
    MEASURED,
    NAME,
    NUMBERS,
    OBJECT,
    RATIO,
    TEXT,
    WHOLE,
    inside,
    parse_json,
    read_json,
    read_lines,
    require_record,
)
from tomadiff.utils.writing import append_line, sweep, write_whole


class RunError(TomaError, RuntimeError):
    """A run's folder cannot be used as asked."""


@dataclass(frozen=True)
class Sample:
    """One image: what was generated, how, and what was measured on it.

    Attributes:
        method: name in the catalogue, or ``"full"`` for the model as it is.
        ratio: share of tokens removed; 0 where none is.
        prompt: what was asked for.
        seed: of the sampler.
        seconds: how long generating took.
        flops: counted FLOPs of the denoiser, 0 where they were not counted.
        metrics: by name, such as ``{"psnr": 31.2}``.
        negative: what was to be kept out of the image.
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
        """A name that is the same in every run of the same task, and safe as a file name."""
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
    def begin(cls, folder: Path, config: Mapping[str, Any], environment: Mapping[str, Any], process: int = 0) -> Run:
        """Open a new folder, or go on in one that was begun with the same ``config``."""
        run = cls(folder, process)
        try:
            run.images.mkdir(parents=True, exist_ok=True)
            if run._file("run.json").exists():
                run._require_same(config)
            elif process == 0:
                about = {"config": dict(config), "environment": dict(environment)}
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
        for folder in (self.folder, inside(self.folder, "images", error=RunError)):
            sweep(folder)

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
    def environment(self) -> dict[str, Any]:
        """Machine and versions."""
        return dict(self._about()["environment"])

    def _about(self) -> dict[str, Any]:
        path = self._file("run.json")
        if not path.is_file():
            raise RunError(f"{self.folder} is not a run: it has no run.json.")
        return require_record(read_json(path, RunError), {"config": OBJECT, "environment": OBJECT}, path, RunError)

    def _file(self, name: str) -> Path:
        return inside(self.folder, name, error=RunError)

    # ------------------------------------------------------------------------------------------ samples
    def samples(self) -> dict[str, Sample]:
        """Finished samples by key; a torn last line, or one without its image, does not count."""
        found = {}
        for path in sorted(self.folder.glob("results*.jsonl")):
            for where, held in read_lines(self._file(path.name), RunError):
                sample = _sample(held, where)
                if self.image_path(sample.key).exists():
                    found[sample.key] = sample
        return found

    def add(self, sample: Sample, image: Image.Image, about: Mapping[str, Any] | None = None) -> None:
        """Record a finished sample: the image first, then its line, each complete or not at all."""
        note = PngInfo()
        note.add_itxt("tomadiff", json.dumps({**asdict(sample), **(about or {})}))
        save_image(image, self.image_path(sample.key), pnginfo=note)
        self.append(sample)

    def append(self, sample: Sample) -> None:
        """Record a line alone, for a sample whose image is there already (later lines replace earlier ones)."""
        name = "results.jsonl" if self.process == 0 else f"results-{self.process}.jsonl"
        append_line(self._file(name), json.dumps(asdict(sample)))

    def image_path(self, key: str) -> Path:
        """Where the image of a sample is."""
        return inside(self.folder, "images", f"{key}.png", error=RunError)

    def image(self, key: str) -> Image.Image:
        """The image of a sample."""
        return read_image(self.image_path(key), RunError)


def note_of(path: Path) -> dict[str, Any]:
    """What an image of a run says about how it was generated; enough to generate it again."""
    text = image_text(path, "tomadiff", RunError)
    if text is None:
        raise RunError(f"{path} does not say how it was generated; only images of tomadiff do.")
    note = parse_json(text, path, RunError)
    if not OBJECT.fits(note):
        raise RunError(f"{path} does not say how it was generated; only images of tomadiff do.")
    return dict(note)


_NEEDED = {"method": NAME, "ratio": RATIO, "prompt": TEXT, "seed": WHOLE}
_MORE = {"seconds": MEASURED, "flops": MEASURED, "metrics": NUMBERS, "negative": TEXT}


def _sample(held: object, where: str) -> Sample:
    return Sample(**require_record(held, _NEEDED, where, RunError, **_MORE))
