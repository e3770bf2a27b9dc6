"""Latents of composed pictures, made once, so that a training step runs the denoiser only."""

import json
import os

import numpy as np
import torch

from training import autoencoder
from training.compose import Pictures, compose, known_sprites
from training.objects import COLOUR_NAMES, FIRST, NAMES, PHRASINGS, caption
from training.paths import stage_dir

COUNT, CHUNK, SEED = 16384, 64, 100


def train() -> None:
    """Write latents.npy (COUNT, 4, 64, 64) fp16 and pairs.npy (COUNT, 2), whole or not at all."""
    folder = stage_dir("pool")
    if (folder / "pool.json").exists():
        return
    shape = (COUNT, 4, 64, 64)
    latents = np.lib.format.open_memmap(folder / "latents.npy", mode="w+", dtype=np.float16, shape=shape)
    pairs = np.zeros((COUNT, 2), dtype=np.int64)
    vae, sprites = autoencoder.load().to(memory_format=torch.channels_last), known_sprites()
    for start in range(0, COUNT, CHUNK):
        pictures = compose(sprites, CHUNK, torch.Generator().manual_seed(SEED + start))
        latents[start : start + CHUNK] = encode(vae, pictures).numpy()
        pairs[start : start + CHUNK] = torch.stack([pictures.objects, pictures.colours], 1).numpy()
    latents.flush()
    np.save(folder / "pairs.npy", pairs)
    partial = folder / "pool.json.partial"
    partial.write_text(json.dumps(dict(count=COUNT, seed=SEED)))
    os.replace(partial, folder / "pool.json")


@torch.no_grad()
def encode(vae: torch.nn.Module, pictures: Pictures) -> torch.Tensor:
    return vae.encode(pictures.pixels).latent_dist.mean


class Pool:
    """Draws batches of (latents (batch, 4, 64, 64) fp32, captions) from the files `train` wrote."""

    def __init__(self) -> None:
        folder = stage_dir("pool")
        self.latents = np.load(folder / "latents.npy", mmap_mode="r")
        self.pairs = np.load(folder / "pairs.npy")
        self.learnt = np.flatnonzero(np.isin(self.pairs[:, 0], [NAMES.index(name) for name in FIRST]))

    def batch(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, list[str]]:
        """Pictures of the objects that the denoisers learn."""
        rows = self.learnt[torch.randint(len(self.learnt), (count,), generator=generator).numpy()]
        phrasings = torch.randint(len(PHRASINGS), (count,), generator=generator).tolist()
        captions = [
            caption(NAMES[o], COLOUR_NAMES[c], p) for (o, c), p in zip(self.pairs[rows], phrasings, strict=True)
        ]
        return torch.from_numpy(self.latents[rows].astype(np.float32)), captions
