"""FLUX.3 Image Klein, a modular pipeline.

python -m examples.flux3          # a GPU; downloads the model
python -m examples.flux3 --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import ModularPipeline

    pipe = ModularPipeline.from_pretrained("black-forest-labs/flux-3-image-klein-base")
    pipe.load_components(torch_dtype=torch.bfloat16)
    pipe.to("cuda")
    return pipe, lambda: pipe(prompt=PROMPT, num_inference_steps=30, generator=seed(), output="images")[0]


def tiny() -> Loaded:
    from tests.newer_pipelines import build, latents_of

    small = build("flux3")
    call = {**small.settings, "num_inference_steps": 10}
    return small.pipe, lambda: latents_of(small.pipe(**call, generator=seed()))


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
