"""Tiny random networks, saved as transformers saves real ones, and images to show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from tomadiff.evaluation.metrics.features import to_pixels

# Without torchvision, transformers takes these for the usual names; asking for them directly keeps it quiet.
ClipImages = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
SHAPE: dict[str, Any] = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)


def save_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIPModel of 32 × 32 images with its processor, one token per byte."""
    torch.manual_seed(seed)
    letters = sorted(ByteLevel.alphabet())
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    tokenizer = transformers.CLIPTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[])
    text = dict(vocab_size=len(words), max_position_embeddings=40, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    vision = dict(image_size=32, patch_size=8)
    config = transformers.CLIPConfig(
        text_config={**SHAPE, **text}, vision_config={**SHAPE, **vision}, projection_dim=16
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    images = ClipImages(size={"shortest_edge": 32}, crop_size=32)
    transformers.CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def save_dino(folder: Path, kind: str = "vit") -> Path:
    """A ViT (as DINO's weights are published) or a Dinov2 of 32 × 32 images."""
    torch.manual_seed(0)
    if kind == "vit":
        model = transformers.ViTModel(transformers.ViTConfig(**SHAPE, image_size=32, patch_size=8))
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(**SHAPE, image_size=32, patch_size=8))
    model.save_pretrained(folder)
    ClipImages(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder)
    return folder


def image(seed: int, size: tuple[int, int] = (32, 32), noise: float = 0.0) -> Image.Image:
    """A smooth image that ``seed`` chooses, with noise that depends on how much of it there is."""
    chance = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    waves = [np.sin(6 * (a * x + b * y) + c) for a, b, c in chance.uniform(0, 2, (3, 3))]
    values = np.stack(waves, -1) * 0.4 + 0.5 + noise * chance.standard_normal((size[1], size[0], 3))
    return Image.fromarray((values.clip(0, 1) * 255).astype(np.uint8))


class Means:
    """A network that sees the mean colour and its spread: ``(N, 6)``."""

    def images(self, images: Sequence[Image.Image]) -> Tensor:
        pixels = to_pixels(images).flatten(2)
        return torch.cat([pixels.mean(2), pixels.std(2)], 1)
