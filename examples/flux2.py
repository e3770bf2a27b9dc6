"""FLUX.2 klein: four steps leave nothing to forecast, so tokens merge.

python -m examples.flux2          # a GPU; downloads the model
python -m examples.flux2 --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import Flux2KleinPipeline

    name = "black-forest-labs/FLUX.2-klein-4B"
    pipe = Flux2KleinPipeline.from_pretrained(name, torch_dtype=torch.bfloat16).to("cuda")
    return pipe, lambda: pipe(PROMPT, num_inference_steps=4, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.newer_pipelines import build, latents_of

    small = build("flux2_klein")
    return small.pipe, lambda: latents_of(small.pipe(**small.settings, generator=seed()))


WAYS = {
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
    "half the tokens": lambda pipe: tomadiff.apply(pipe, 0.5),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
