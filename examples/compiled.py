"""Regional compilation: compile the blocks once, then patch; no graph breaks, and no compilation per step.

python -m examples.compiled          # a GPU; downloads the model
python -m examples.compiled --tiny   # offline; needs a C compiler
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import FluxPipeline

    pipe = FluxPipeline.from_pretrained("black-forest-labs/FLUX.1-dev", torch_dtype=torch.bfloat16).to("cuda")
    pipe.transformer.compile_repeated_blocks(fullgraph=True)
    return pipe, lambda: pipe(PROMPT, num_inference_steps=28, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.tiny import build

    small = build("flux")
    small.pipe.transformer.compile_repeated_blocks(fullgraph=True)
    return small.pipe, lambda: small.pipe(PROMPT, num_inference_steps=10, **small.settings, generator=seed()).images[0]


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
