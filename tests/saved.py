"""Tiny pipelines as folders, the way people have them on disk."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import build

FRUGAL = ("--steps", "2", "--size", "64")  # options that make a tiny pipeline quick


def save(family: str, folder: Path, safetensors: bool = True) -> Path:
    """A diffusers folder of a family's tiny pipeline."""
    build(family).pipe.save_pretrained(folder, safe_serialization=safetensors)
    return folder
