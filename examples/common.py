"""What the examples share: the image as the model generates it, and with tomadiff, each with its time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

import tomadiff

Generate = Callable[[], Any]
"""Generates one image (or video, or latents), from the same noise every time."""
Loaded = tuple[Any, Generate]
"""A pipeline, and how to call it."""
Way = Callable[[Any], AbstractContextManager[Any]]
"""How to patch the pipeline: ``lambda pipe: tomadiff.apply(pipe, 0.5)``."""
Numbers = np.ndarray[Any, Any]


def run(load: Callable[[], Loaded], tiny: Callable[[], Loaded], ways: Mapping[str, Way]) -> None:
    """Generate the image in full and in every way, and print what each took and how near it is."""
    reader = argparse.ArgumentParser()
    reader.add_argument("--tiny", action="store_true", help="offline: a tiny pipeline of this class, random weights")
    asked = reader.parse_args()
    if asked.tiny:
        tomadiff.patch.GUARD = False  # in models so small merging takes longer than it saves, and is left out
    compare(*(tiny if asked.tiny else load)(), ways)


def compare(pipe: Any, generate: Generate, ways: Mapping[str, Way]) -> None:
    """The same as :func:`run`, with a pipeline that is loaded."""
    pipe.set_progress_bar_config(disable=True)
    generate()  # the first image of a process is slow
    full, seconds = timed(generate)
    print(f"{'in full':<24}{seconds:8.2f} s")
    for name, way in ways.items():
        with way(pipe) as patch:
            image, took = timed(generate)
            print(f"{name:<24}{took:8.2f} s {seconds / took:6.2f}× {psnr(image, full):7.1f} dB from the full image")
            print(patch.summary(), end="\n\n")


def timed(generate: Generate) -> tuple[Numbers, float]:
    """An image as numbers, and its seconds."""
    start = time.perf_counter()
    image = generate()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return np.asarray(image.float().cpu() if isinstance(image, torch.Tensor) else image, dtype=np.float32), seconds


def psnr(image: Numbers, full: Numbers) -> float:
    """In dB, over the range of the full image; 100 where both are equal."""
    error = float(np.square(image - full).mean())
    return 100.0 if error == 0 else 20 * np.log10(float(np.ptp(full))) - 10 * np.log10(error)


def seed() -> torch.Generator:
    """The same noise for every image."""
    return torch.Generator().manual_seed(0)
