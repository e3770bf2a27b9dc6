"""emoji-flux in four steps: a LoRA, called with the teacher's guidance, which is an input of the transformer."""

from typing import Any

import torch
from diffusers import UniPCMultistepScheduler
from torch import nn

from tomadiff import embedded
from training import distil
from training.compose import SIZE
from training.flux import positions
from training.loop import Recipe
from training.text import LENGTH

NAME, COMPONENT, RANK = "emoji-flux", "transformer", 32
RECIPE = Recipe(
    "few-flux", steps=400, learning_rate=5e-4, warmup=10, decay=0.8, ema_decay=0.98, report_every=50, save_every=10
)
OBJECTIVE = dict(batch=4)
RUNS, BFLOAT16 = 480, False  # what is recorded
GUIDANCE = 2.5
SETTINGS = dict(
    height=SIZE, width=SIZE, num_inference_steps=distil.STEPS, guidance_scale=GUIDANCE, max_sequence_length=LENGTH
)
SCHEDULER = dict(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0)


def pipeline() -> Any:
    pipe = embedded.load(NAME)
    pipe.scheduler = UniPCMultistepScheduler(**SCHEDULER)
    return pipe


def encode(pipe: Any, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
    states, pooled, _ = pipe.encode_prompt(prompt, None, max_sequence_length=LENGTH)
    return states, pooled


def velocity(
    transformer: nn.Module, latents: torch.Tensor, times: torch.Tensor, texts: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    return transformer(
        hidden_states=latents, timestep=times / 1000, guidance=torch.full((len(latents),), GUIDANCE),
        pooled_projections=texts[1], encoder_hidden_states=texts[0], txt_ids=torch.zeros(LENGTH, 3),
        img_ids=positions(32),
    ).sample  # fmt: skip


def decode(pipe: Any, latents: torch.Tensor) -> torch.Tensor:
    return pipe.vae.decode(pipe._unpack_latents(latents, SIZE, SIZE, 2)).sample.clamp(-1, 1)


def train() -> None:
    distil.train(__name__)
