"""Stable Diffusion 3.5 Large.

python -m examples.sd35          # a GPU of 24 GB; downloads the model
python -m examples.sd35 --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import StableDiffusion3Pipeline

    name = "stabilityai/stable-diffusion-3.5-large"
    pipe = StableDiffusion3Pipeline.from_pretrained(name, torch_dtype=torch.bfloat16)
    pipe.enable_model_cpu_offload()
    return pipe, lambda: pipe(PROMPT, num_inference_steps=28, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.tiny import build

    small = build("sd3")
    return small.pipe, lambda: small.pipe(PROMPT, num_inference_steps=10, **small.settings, generator=seed()).images[0]


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
