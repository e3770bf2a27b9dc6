"""emoji-sdxl in four steps without guidance: a LoRA that takes the guided teacher's five steps in one pass."""

from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler
from torch import nn

from tomadiff import embedded
from training import distil
from training.compose import SIZE
from training.loop import Recipe

NAME, COMPONENT, RANK = "emoji-sdxl", "unet", 32
RECIPE = Recipe("few-sdxl", steps=2000, learning_rate=4e-4, warmup=10, ema_decay=0.98, report_every=40, save_every=10)
OBJECTIVE = dict(single=8, whole=4, rollouts_from=120)
RUNS = 240
SETTINGS = dict(height=SIZE, width=SIZE, num_inference_steps=distil.STEPS, guidance_scale=1.0)
SCHEDULER = dict(solver_order=1)  # with flow sigmas, this is Euler's step; borders are every fifth of the teacher's


def pipeline() -> Any:
    pipe = embedded.load(NAME)
    pipe.unet.to(memory_format=torch.channels_last)  # forward passes take half the time
    pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config, **SCHEDULER)
    return pipe


def encode(pipe: Any, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
    states, _, pooled, _ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
    return states, pooled


def velocity(
    unet: nn.Module, latents: torch.Tensor, times: torch.Tensor, texts: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    sizes = torch.tensor([[SIZE, SIZE, 0, 0, SIZE, SIZE]], dtype=latents.dtype).expand(len(latents), -1)
    added = dict(text_embeds=texts[1], time_ids=sizes)
    return unet(latents, times, texts[0], added_cond_kwargs=added).sample


def decode(pipe: Any, latents: torch.Tensor) -> torch.Tensor:
    return pipe.vae.decode(latents).sample.clamp(-1, 1)


def train() -> None:
    distil.train(__name__)
