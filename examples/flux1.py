"""FLUX.1 dev: what we recommend, and merging, which is what schnell with its 4 steps can gain from.

python -m examples.flux1          # a GPU of 24 GB; downloads the model
python -m examples.flux1 --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import FluxPipeline

    pipe = FluxPipeline.from_pretrained("black-forest-labs/FLUX.1-dev", torch_dtype=torch.bfloat16)
    pipe.enable_model_cpu_offload()
    return pipe, lambda: pipe(PROMPT, num_inference_steps=28, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.tiny import build

    small = build("flux")
    return small.pipe, lambda: small.pipe(PROMPT, num_inference_steps=10, **small.settings, generator=seed()).images[0]


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
