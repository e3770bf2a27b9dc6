"""A photograph-like image made from nothing but a seed, and the token grid a model might see of it.

A mountain lake at dusk: smooth sky, hard ridge lines, fine texture in the foreground. The mixture matters. Flat
areas merge for free, edges and texture do not, and a merge map of the image shows which is which.
"""

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

Pixels = npt.NDArray[np.float32]

SKY = ((0.11, 0.17, 0.36), (0.38, 0.39, 0.60), (0.93, 0.60, 0.47), (0.99, 0.83, 0.59))
RIDGES = (  # far to near: height on the image, roughness, colour
    (0.44, 0.16, (0.50, 0.43, 0.55)),
    (0.50, 0.13, (0.31, 0.30, 0.44)),
    (0.56, 0.07, (0.15, 0.19, 0.28)),
)
SHORE, SUN, SUN_RADIUS = 0.62, (0.425, 0.365), 0.04


def synthetic_image(size: int = 512, seed: int = 7) -> Pixels:
    """Colours in [0, 1] of a mountain lake at dusk, shape ``(size, size, 3)``; equal seeds give equal images."""
    random = np.random.default_rng(seed)
    image = _sky(size, random)
    for height, rough, colour in RIDGES:
        image = _ridge(image, random, height, rough, colour)
    image = _lake(image, random)
    image = _meadow(image, random)
    image = _pines(image, random)
    return np.clip(image, 0, 1).astype(np.float32)


def to_tokens(image: Pixels, side: int = 64, channels: int = 64) -> Tensor:
    """What a model might see of ``image``: ``(1, side * side, channels)``, one token per square patch.

    A token holds the patch's colours at 4 x 4 points and their differences, less the image's mean, under a fixed
    random projection: near-equal patches get near-equal tokens, which is all that merging asks for.
    """
    colours = torch.from_numpy(image).permute(2, 0, 1)[None]
    points = torch.nn.functional.adaptive_avg_pool2d(colours, side * 4)
    patches = torch.nn.functional.pixel_unshuffle(points, 4).flatten(2).transpose(1, 2)
    flat = torch.nn.functional.interpolate(to_colours(image, side), scale_factor=16)  # each patch's mean colour
    features = torch.cat([patches - patches.mean(1, keepdim=True), patches - flat], dim=2)
    own = torch.Generator().manual_seed(0)
    projection = torch.randn(features.shape[2], channels, generator=own) / channels**0.5
    return torch.matmul(features, projection)


def to_colours(image: Pixels, side: int = 64) -> Tensor:
    """Mean colour of every patch, shape ``(1, side * side, 3)``."""
    colours = torch.from_numpy(image).permute(2, 0, 1)[None]
    return torch.nn.functional.adaptive_avg_pool2d(colours, side).flatten(2).transpose(1, 2)


def _noise(shape: tuple[int, int], random: np.random.Generator, cells: tuple[int, int], octaves: int = 5) -> Pixels:
    """Fractal noise about 0 with most values in [-1, 1]; ``cells`` is the coarsest octave's grid."""
    total = np.zeros(shape, np.float32)
    for octave in range(octaves):
        grid = random.standard_normal((cells[0] << octave, cells[1] << octave)).astype(np.float32)
        layer = Image.fromarray(grid).resize(shape[::-1], Image.Resampling.BICUBIC)
        total += np.asarray(layer) / 2 ** (octave + 1)
    return total


def _axes(size: int) -> tuple[Pixels, Pixels]:
    """Row and column coordinates in [0, 1), shapes ``(size, 1)`` and ``(1, size)``."""
    line = np.linspace(0, 1, size, endpoint=False, dtype=np.float32)
    return line[:, None], line[None, :]


def _blend(below: Pixels, above: Pixels | tuple[float, float, float], cover: Pixels) -> Pixels:
    """``above`` painted over ``below`` where ``cover`` ``(size, size)`` is 1."""
    return below + (np.asarray(above, np.float32) - below) * cover[..., None]


def _sky(size: int, random: np.random.Generator) -> Pixels:
    """Dusk from blue to apricot, thin clouds lit from below, and a low sun with its glow."""
    y, x = _axes(size)
    height = np.clip(y / SHORE, 0, 1)[:, 0]
    bands = [np.interp(height, (0, 0.4, 0.72, 1), [colour[c] for colour in SKY]) for c in range(3)]
    sky = np.repeat(np.stack(bands, -1)[:, None, :], size, axis=1).astype(np.float32)
    clouds = np.clip(0.9 * _noise((size, size), random, (12, 2)) - 0.05, 0, 0.7) * (1 - np.abs(y - 0.2) * 5).clip(0, 1)
    sky = _blend(sky, (1.0, 0.76, 0.66), clouds)
    away = np.hypot(x - SUN[0], y - SUN[1])
    sky = _blend(sky, (1.0, 0.80, 0.55), 0.75 * np.exp(-((away / 0.17) ** 1.2)))
    return _blend(sky, (1.0, 0.97, 0.86), np.clip((SUN_RADIUS - away) * size / 2, 0, 1))


def _ridge(
    below: Pixels, random: np.random.Generator, height: float, rough: float, colour: tuple[float, float, float]
) -> Pixels:
    """A mountain range across the image: jagged outline, rock shaded by its slope, haze towards its foot."""
    size = below.shape[0]
    y, _ = _axes(size)
    outline = height - rough * (1 - 1.6 * np.abs(_noise((1, size), random, (1, 4), octaves=7)))
    rock = _noise((size, size), random, (8, 12), octaves=5)
    light = 1 - 0.006 * size * np.gradient(rock, axis=1)
    lit = np.asarray(colour, np.float32) * light[..., None]
    drop: Pixels = y - outline.astype(np.float32)
    haze = np.clip(drop / (SHORE - height + rough) * 0.45, 0, 0.45)
    return _blend(below, _blend(lit, (0.86, 0.66, 0.62), haze), np.clip(drop * size, 0, 1))


def _lake(below: Pixels, random: np.random.Generator) -> Pixels:
    """Everything above the shore mirrored in rippled water, and the sun's path on it."""
    size = below.shape[0]
    y, x = _axes(size)
    depth = np.clip(y - SHORE, 0, 1)
    ripple = _noise((size, size), random, (60, 6), octaves=3) * (0.004 + 0.10 * depth)
    rows = np.clip((2 * SHORE - y + ripple) * size, 0, SHORE * size - 1).astype(int)
    mirrored = below[rows, np.arange(size)[None, :]] * np.asarray((0.66, 0.72, 0.84), np.float32)
    glitter = np.exp(-(((x - SUN[0]) / (0.02 + 0.3 * depth)) ** 2)) * np.clip(ripple * 60, 0, 1)
    water = _blend(mirrored, (1.0, 0.83, 0.62), 0.8 * glitter.astype(np.float32))
    return _blend(below, water, np.broadcast_to(y >= SHORE, (size, size)).astype(np.float32))


def _meadow(below: Pixels, random: np.random.Generator) -> Pixels:
    """Tall grass in the foreground: the finest texture of the image, with a few flowers."""
    size = below.shape[0]
    y, x = _axes(size)
    bank = 0.90 - 0.13 * x + 0.012 * _noise((1, size), random, (1, 6))
    blades = _noise((size, size), random, (12, 90), octaves=3)
    tone = (0.85 + 0.75 * blades)[..., None]
    grass = np.asarray((0.13, 0.17, 0.10), np.float32) * tone.clip(0.2, 2.4)
    bloom = (random.random((size // 6, size // 6)) > 0.95).astype(np.float32)
    petals = np.asarray(Image.fromarray(bloom).resize((size, size), Image.Resampling.BICUBIC)).clip(0, 1)
    grass = _blend(grass, (0.86, 0.47, 0.50), petals * np.clip((y - bank) * 12, 0, 1))
    return _blend(below, grass, np.clip((y - bank + 0.02 * blades) * size / 3, 0, 1))


def _pines(below: Pixels, random: np.random.Generator) -> Pixels:
    """Dark conifers on the left bank, painted branch row by branch row."""
    size = below.shape[0]
    y, x = _axes(size)
    cover = np.zeros((size, size), np.float32)
    for centre, foot, tall in ((0.055, 0.97, 0.62), (0.17, 0.95, 0.46), (0.255, 0.93, 0.30), (0.93, 0.84, 0.24)):
        along = np.clip((y - (foot - tall)) / tall, 0, 1)
        branches = 0.55 + 0.45 * ((along * tall * 34 + 0.2 * np.sin(x * 90)) % 1)
        width = 0.17 * tall * along * branches + 0.003
        needles = 1 + 0.25 * random.standard_normal((size, size)).astype(np.float32)
        inside = (np.abs(x - centre) < width * needles) & (along > 0) & (y < foot)
        cover = np.maximum(cover, inside)
    return _blend(below, (0.05, 0.08, 0.09), cover)
