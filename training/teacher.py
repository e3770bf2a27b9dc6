"""Record what a few-step student learns from: every latent of the teacher's own 20-step runs, once, in shards.

The teacher is the embedded pipeline as shipped, with its settings. Seeds are other than those that anything is
measured on; held-out pairs stay held out.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import tomadiff
from tomadiff import embedded
from training.flux import pack
from training.objects import COLOUR_NAMES, FIRST, PHRASINGS, caption, held_out_pairs
from training.paths import stage_dir

STEPS = 20
SHARD = 8  # runs of a batch and of a file: what a stopped recording loses
TOLERANCE = 0.1  # of the forecasts that recording is sped up by
FIRST_SEED = 100_000  # far from the seeds of checks, tests and benchmarks
PLAIN_SHARE = 0.7  # of captions that are worded as the checks word them

Run = tuple[str, int]


def training_runs() -> Iterator[Run]:
    """Captions and seeds to learn from, without end: every known pair of what the pipelines draw, in random order."""
    chooser, seed = random.Random(23), FIRST_SEED
    pairs = [(name, colour) for name in FIRST for colour in COLOUR_NAMES if (name, colour) not in held_out_pairs()]
    while True:
        chooser.shuffle(pairs)
        for pair in pairs:
            phrasing = 0 if chooser.random() < PLAIN_SHARE else chooser.randrange(1, len(PHRASINGS))
            yield caption(*pair, phrasing), seed
            seed += 1


def noise_of(seeds: list[int], packed: bool) -> torch.Tensor:
    """What the pipeline starts from for these seeds: (runs, 4, 64, 64), or Flux's tokens (runs, 1024, 16)."""
    noise = torch.cat([torch.randn(1, 4, 64, 64, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
    return pack(noise) if packed else noise


@torch.no_grad()
def trajectory(pipe: Any, settings: dict, runs: list[Run]) -> torch.Tensor:
    """Latents before the first step and after each: (runs, steps + 1, ...)."""
    latents = noise_of([seed for _, seed in runs], packed=hasattr(pipe, "transformer"))
    seen = [latents]

    def keep(_pipe: Any, _step: int, _time: torch.Tensor, tensors: dict) -> dict:
        seen.append(tensors["latents"])
        return tensors

    prompts = [prompt for prompt, _ in runs]
    pipe(prompts, latents=latents, output_type="latent", callback_on_step_end=keep, **settings)
    return torch.stack(seen, 1)


def write_shard(path: Path, latents: torch.Tensor, runs: list[Run]) -> None:
    """Half precision: a thousand times finer than what a student misses."""
    temporary = path.with_suffix(".partial")
    save_file({"latents": latents.half().contiguous()}, temporary, {"runs": json.dumps(runs)})
    os.replace(temporary, path)


def read_shard(path: Path) -> tuple[torch.Tensor, list[Run]]:
    with safe_open(path, "pt") as shard:
        runs = [(prompt, seed) for prompt, seed in json.loads(shard.metadata()["runs"])]
        return shard.get_tensor("latents"), runs


def shards(stage: str) -> list[Path]:
    return sorted((stage_dir(stage) / "runs").glob("*.safetensors"))


def record(name: str, stage: str, count: int, bfloat16: bool) -> None:
    """The first `count` training runs of a pipeline; shards that are there already stay.

    Steps are forecast, which takes a third of the time away: images are 36 dB and more near to those of all steps,
    far nearer than any student. bfloat16 takes another third; emoji-flux loses too much by it (33 dB at worst of 8).
    """
    pipe, settings = embedded.load(name), embedded.settings(name)
    tomadiff.apply(pipe, forecast=TOLERANCE)
    folder = stage_dir(stage) / "runs"
    folder.mkdir(exist_ok=True)
    runs = training_runs()
    for number in range(count // SHARD):
        part = [next(runs) for _ in range(SHARD)]
        path = folder / f"{number:05d}.safetensors"
        if not path.exists():
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                latents = trajectory(pipe, settings, part)
            write_shard(path, latents, part)
