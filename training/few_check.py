"""What the LoRA files for four steps must hold: python -m training.few_check few_sdxl few_flux.

Measured from the checkpoint of a stage, before anything is exported.

The judge ranks the right caption first for at least 85 % of 200 images. And four steps come at least as near to the
teacher's 20-step images as the teacher's own 8 steps do: median PSNR over the 100 pairs of prompt and seed that
everything else is shown on. The teacher's runs are kept, so that only the student's are made again.
"""

import argparse
import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import CLIPModel

from tomadiff import embedded
from tomadiff.evaluation.runs.prompts import emoji_prompts
from training import distil, teacher
from training.autoencoder import psnr
from training.check import Pair, asked_pairs, right_first
from training.objects import FIRST, caption
from training.paths import stage_dir
from training.samples import draw_prompts

PAIRS, BAR_STEPS, ACCURACY = 100, 8, 0.85


def shown_pairs() -> list[teacher.Run]:
    """The pairs of `benchmarks.fidelity`: every prompt in turn, a new seed each time round."""
    prompts = emoji_prompts()
    return [(prompts[place % len(prompts)].text, place // len(prompts)) for place in range(PAIRS)]


def parts() -> Iterator[tuple[int, list[teacher.Run]]]:
    runs = shown_pairs()
    return ((start, runs[start : start + teacher.SHARD]) for start in range(0, PAIRS, teacher.SHARD))


def teacher_latents(name: str, steps: int, load: Callable[[], Any]) -> torch.Tensor:
    """Where the teacher's runs of `steps` steps end, (100, ...); made once."""
    folder = stage_dir(f"{name}-{steps}-steps")
    for start, runs in parts():
        path = folder / f"{start:03d}.safetensors"
        if not path.exists():
            settings = embedded.settings(name) | dict(num_inference_steps=steps)
            teacher.write_shard(path, teacher.trajectory(load(), settings, runs)[:, -1], runs)
    return torch.cat([teacher.read_shard(path)[0].float() for path in sorted(folder.glob("*.safetensors"))])


@torch.no_grad()
def images(pipe: Any, latents: torch.Tensor) -> torch.Tensor:
    """Decoded in batches: (runs, 3, 128, 128) in [-1, 1]."""
    if hasattr(pipe, "transformer"):
        latents = pipe._unpack_latents(latents, 128, 128, 2)
    return torch.cat([pipe.vae.decode(part).sample.clamp(-1, 1) for part in latents.split(teacher.SHARD)])


def distance_figures(name: str, pipe: Any, settings: dict) -> dict[str, float]:
    """Median PSNR to the teacher's 20-step images: of the teacher's 8-step ones, and of the student's."""
    base = embedded.load(name)
    wanted = images(base, teacher_latents(name, teacher.STEPS, lambda: base))
    fewer = images(base, teacher_latents(name, BAR_STEPS, lambda: base))
    student = images(pipe, torch.cat([teacher.trajectory(pipe, settings, runs)[:, -1] for _, runs in parts()]))
    return dict(
        teacher_8_steps=psnr(fewer, wanted).median().item(),
        student_4_steps=psnr(student, wanted).median().item(),
        nearer_share=(psnr(student, wanted) > psnr(fewer, wanted)).float().mean().item(),
    )


def accuracy(pipe: Any, settings: dict, judge: CLIPModel, pairs: list[Pair]) -> float:
    drawn = draw_prompts(pipe, settings, [caption(*pair) for pair in pairs], list(range(len(pairs))))
    return float(np.mean(right_first(judge, torch.from_numpy(drawn).permute(0, 3, 1, 2) * 2 - 1, pairs)))


def check(stage: str, count: int = 200) -> dict[str, float]:
    call = importlib.import_module(f"training.{stage}")
    distil.write_lora(call.__name__)
    pipe, settings = distil.load_student(call.__name__), call.SETTINGS
    figures = distance_figures(call.NAME, pipe, settings)
    return figures | dict(right_first=accuracy(pipe, settings, embedded.load("emoji-judge"), asked_pairs(count, FIRST)))


def holds(figures: dict[str, float]) -> bool:
    return figures["right_first"] >= ACCURACY and figures["student_4_steps"] >= figures["teacher_8_steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=["few_sdxl", "few_flux"])
    for stage in parser.parse_args().stages:
        figures = check(stage)
        print(json.dumps({stage: figures | dict(holds=holds(figures))}, indent=2))


if __name__ == "__main__":
    main()
