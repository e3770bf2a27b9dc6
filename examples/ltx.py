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
    from tests.families.test_further_pipelines import ltx_condition

    return ltx_condition()


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
