"""Sample grids: 8 fixed prompts (rows) by 4 fixed seeds (columns), never chosen by hand."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from training.objects import caption

# Four pairs seen in training, then four that were held out.
PAIRS = (
    ("fox", "blue"), ("panda", "pink"), ("strawberry", "white"), ("hamburger", "green"),
    ("pig", "purple"), ("owl", "blue"), ("donut", "orange"), ("frog", "yellow"),
)  # fmt: skip
SEEDS = (0, 1, 2, 3)


def grid(pictures: np.ndarray, columns: int) -> Image.Image:
    """Pictures (count, h, w, 3) in [0, 1] side by side, row by row."""
    count, height, width, _ = pictures.shape
    rows = pictures.reshape(count // columns, columns, height, width, 3).transpose(0, 2, 1, 3, 4)
    return Image.fromarray((rows.reshape(-1, columns * width, 3) * 255).round().astype(np.uint8))


def draw_prompts(pipe: torch.nn.Module, settings: dict, prompts: list[str], seeds: list[int]) -> np.ndarray:
    """One picture per prompt and seed, (prompts, h, w, 3) in [0, 1], in batches of 8."""
    pictures = []
    for start in range(0, len(prompts), 8):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds[start : start + 8]]
        drawn = pipe(prompts[start : start + 8], generator=generators, output_type="np", **settings)
        pictures.append(drawn.images)
    return np.concatenate(pictures)


def save_grid(pipe: torch.nn.Module, settings: dict, path: Path, seeds: tuple[int, ...] = SEEDS) -> None:
    """All prompts and `seeds`, 8 pictures wide: one line for a glance during training, four for the record."""
    prompts = [caption(name, colour) for name, colour in PAIRS for _ in seeds]
    grid(draw_prompts(pipe, settings, prompts, list(seeds) * len(PAIRS)), 8).save(path)


def glance(pipe: torch.nn.Module, settings: dict, path: Path) -> None:
    """One seed and few steps: cheap enough to look often."""
    save_grid(pipe, settings | dict(num_inference_steps=12), path, SEEDS[:1])
