"""A ControlNet and a LoRA with merging and forecasts: any order of loading and patching.

python -m examples.controlnet_lora          # a GPU; downloads the models
python -m examples.controlnet_lora --tiny   # offline
"""

import torch
from PIL import Image

import tomadiff
from examples.common import Loaded, run, seed

PROMPT = "a fox in the snow, pixel art"


def load() -> Loaded:
    from diffusers import ControlNetModel, StableDiffusionXLControlNetPipeline

    control = ControlNetModel.from_pretrained("diffusers/controlnet-canny-sdxl-1.0", torch_dtype=torch.float16)
    name = "stabilityai/stable-diffusion-xl-base-1.0"
    pipe = StableDiffusionXLControlNetPipeline.from_pretrained(
        name, controlnet=control, torch_dtype=torch.float16, variant="fp16"
    ).to("cuda")
    pipe.load_lora_weights("nerijs/pixel-art-xl")
    edges = Image.radial_gradient("L").resize((1024, 1024)).point(lambda value: 255 * (120 < value < 130))
    return pipe, lambda: pipe(PROMPT, image=edges.convert("RGB"), generator=seed()).images[0]


def tiny() -> Loaded:
    from diffusers import ControlNetModel, StableDiffusionControlNetPipeline
    from peft import LoraConfig

    from tests.tiny import build

    plain = build("sd15").pipe
    control = ControlNetModel.from_unet(plain.unet, conditioning_embedding_out_channels=(8, 16)).eval()
    plain.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    pipe = StableDiffusionControlNetPipeline(**plain.components, controlnet=control, requires_safety_checker=False)
    edges = Image.radial_gradient("L").resize((64, 64)).convert("RGB")
    return pipe, lambda: pipe(PROMPT, image=edges, num_inference_steps=10, generator=seed()).images[0]


WAYS = {
    "recommended": tomadiff.apply,
    "half the tokens": lambda pipe: tomadiff.apply(pipe, 0.5),
}

if __name__ == "__main__":
    run(load, tiny, WAYS)
