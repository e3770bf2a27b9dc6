"""A denoising loop of one's own: say when an image begins and which step it is.

python -m examples.own_loop   # offline, with the UNet of the embedded emoji-sdxl
"""

import torch

import tomadiff


def denoise(unet, scheduler, latents, steps, patch=None, **text):  # type: ignore[no-untyped-def]
    """The plain loop; two lines tell the patch where it is."""
    scheduler.set_timesteps(steps)
    if patch is not None:
        patch.begin(steps=steps)
    for number, time in enumerate(scheduler.timesteps):
        if patch is not None:
            patch.step(number)
        noise = unet(scheduler.scale_model_input(latents, time), time, **text).sample
        latents = scheduler.step(noise, time, latents).prev_sample
    return latents


@torch.no_grad()
def main() -> None:
    """Denoise in full, and with forecast steps."""
    pipe = tomadiff.embedded.load("emoji-sdxl")
    embeds, _, pooled, _ = pipe.encode_prompt("a fox on a blue background", do_classifier_free_guidance=False)
    size = pipe.unet.config.sample_size
    ids = torch.tensor([[size * 8, size * 8, 0, 0, size * 8, size * 8]], dtype=torch.float32)
    text = {"encoder_hidden_states": embeds, "added_cond_kwargs": {"text_embeds": pooled, "time_ids": ids}}
    noise = torch.randn(1, 4, size, size, generator=torch.Generator().manual_seed(0)) * pipe.scheduler.init_noise_sigma
    full = denoise(pipe.unet, pipe.scheduler, noise, 20, **text)
    with tomadiff.apply(pipe.unet, forecast=0.05) as patch:
        sooner = denoise(pipe.unet, pipe.scheduler, noise, 20, patch, **text)
        print(patch.summary())
    print(f"relative error of the latents: {(sooner - full).norm() / full.norm():.4f}")


if __name__ == "__main__":
    main()
