"""Qwen-Image.

python -m examples.qwen_image          # a GPU of 48 GB; downloads the model
python -m examples.qwen_image --tiny   # offline
"""

import torch

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import QwenImagePipeline

    pipe = QwenImagePipeline.from_pretrained("Qwen/Qwen-Image", torch_dtype=torch.bfloat16)
    pipe.enable_model_cpu_offload()
    return pipe, lambda: pipe(PROMPT, num_inference_steps=50, generator=seed()).images[0]


def tiny() -> Loaded:
    from tests.prompted import qwen_image

    small = qwen_image()
    small.call["num_inference_steps"] = 10
    return small.pipe, lambda: small.generate(PROMPT)


WAYS = {
    "recommended": tomadiff.apply,
    "a quarter of the tokens": lambda pipe: tomadiff.apply(pipe, 0.25),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
