"""LTX-Video.

python -m examples.ltx          # a GPU; downloads the model
python -m examples.ltx --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import LTXPipeline

    pipe = LTXPipeline.from_pretrained("Lightricks/LTX-Video", torch_dtype=torch.bfloat16).to("cuda")
    return pipe, lambda: pipe(PROMPT, num_inference_steps=50, num_frames=65, generator=seed()).frames[0]


def tiny() -> Loaded:
    from tests import prompted

    small = prompted.ltx()
    small.call["num_inference_steps"] = 10
    return small.pipe, lambda: small.generate(PROMPT)


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
