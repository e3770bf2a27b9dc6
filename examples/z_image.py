"""Z-Image-Turbo: few steps, so tokens merge.

python -m examples.z_image          # a GPU; downloads the model
python -m examples.z_image --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import ZImagePipeline

    pipe = ZImagePipeline.from_pretrained("Tongyi-MAI/Z-Image-Turbo", torch_dtype=torch.bfloat16).to("cuda")
    return pipe, lambda: pipe(PROMPT, num_inference_steps=9, guidance_scale=0.0, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.newer_pipelines import build, latents_of

    small = build("z_image")
    call = {**small.settings, "num_inference_steps": 10}
    return small.pipe, lambda: latents_of(small.pipe(**call, generator=seed()))


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
