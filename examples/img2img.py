"""Image-to-image and inpainting run on the same UNet or transformer: a patch serves all of them.

python -m examples.img2img          # a GPU; downloads the model
python -m examples.img2img --tiny   # offline
"""

import torch
from PIL import Image

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, oil painting"


def load() -> Loaded:
    from diffusers import AutoPipelineForImage2Image

    name = "stabilityai/stable-diffusion-xl-base-1.0"
    pipe = AutoPipelineForImage2Image.from_pretrained(name, torch_dtype=torch.float16, variant="fp16").to("cuda")
    sketch = Image.radial_gradient("L").resize((1024, 1024)).convert("RGB")
    return pipe, lambda: pipe(PROMPT, image=sketch, strength=0.7, generator=seed()).images[0]


def tiny() -> Loaded:
    from diffusers import StableDiffusionXLImg2ImgPipeline

    from tests.tiny import build

    pipe = StableDiffusionXLImg2ImgPipeline.from_pipe(build("sdxl").pipe)
    sketch = Image.radial_gradient("L").resize((64, 64)).convert("RGB")
    return pipe, lambda: pipe(PROMPT, image=sketch, strength=0.7, num_inference_steps=10, generator=seed()).images[0]


WAYS = {
    "recommended": tomadiff.apply,
    "half the tokens": lambda pipe: tomadiff.apply(pipe, 0.5),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
