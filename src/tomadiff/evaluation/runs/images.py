"""Images as files: those from elsewhere are read with care, images of a run are written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tomadiff.errors import TomaError
from tomadiff.utils.reading import FileError
from tomadiff.utils.writing import write_whole

FORMATS = ("PNG", "JPEG", "WEBP")  # decoders of other formats start programs, or have a bad name
MOST_PIXELS = 2**26  # 8192 × 8192


def read_image(path: Path, error: type[TomaError] = FileError) -> Image.Image:
    """The RGB image of a file."""
    with _opened(path, error) as image:
        return image.convert("RGB")


def image_text(path: Path, name: str, error: type[TomaError] = FileError) -> str | None:
    """What a PNG says under ``name``, if it does."""
    with _opened(path, error) as image:
        said = getattr(image, "text", {}).get(name)
        return None if said is None else str(said)


@contextmanager
def _opened(path: Path, error: type[TomaError]) -> Iterator[Image.Image]:
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise error(f"{path}: has {image.width} × {image.height} pixels, more than anything generated here.")
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        if isinstance(problem, TomaError):
            raise
        raise error(f"{path}: is not a whole image ({', '.join(FORMATS)}): {problem}.") from problem


def save_image(image: Image.Image, path: Path, **options: Any) -> None:
    """Write a PNG, whole or not at all; ``options`` are Pillow's."""
    held = BytesIO()
    image.save(held, "PNG", **options)
    write_whole(path, held.getvalue())
