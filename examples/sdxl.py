"""SDXL: what we recommend, a budget of time, and merging alone.

python -m examples.sdxl          # a GPU; downloads the model
python -m examples.sdxl --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import StableDiffusionXLPipeline

    name = "stabilityai/stable-diffusion-xl-base-1.0"
    pipe = StableDiffusionXLPipeline.from_pretrained(name, torch_dtype=torch.float16, variant="fp16").to("cuda")
    return pipe, lambda: pipe(PROMPT, num_inference_steps=30, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.tiny import build

    small = build("sdxl")
    return small.pipe, lambda: small.pipe(PROMPT, num_inference_steps=10, **small.settings, generator=seed()).images[0]


WAYS = {
    "recommended": tomadiff.apply,
    "twice as fast": lambda pipe: tomadiff.apply(pipe, flops=0.5),
    "half the tokens": lambda pipe: tomadiff.apply(pipe, 0.5),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
