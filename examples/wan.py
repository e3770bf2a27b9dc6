"""Wan 2.1: a video.

python -m examples.wan          # a GPU; downloads the model
python -m examples.wan --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import WanPipeline

    pipe = WanPipeline.from_pretrained("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", torch_dtype=torch.bfloat16).to("cuda")
    return pipe, lambda: pipe(PROMPT, num_inference_steps=50, num_frames=33, generator=seed()).frames[0]


def tiny() -> Loaded:
    from tests.tiny import build

    small = build("wan")
    return small.pipe, lambda: small.pipe(PROMPT, num_inference_steps=10, **small.settings, generator=seed()).frames[0]


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
