"""The same runs with the models of diffusers, in a loop of one's own: what ComfyUI's results are held against."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from . import host as host

import comfy.sample  # isort: skip

Denoise = Callable[[Tensor, Tensor], Tensor]
"""The denoised image of latents at a noise level."""


def euler(model: Any, denoise: Denoise, sigmas: Tensor, patch: Any, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """What the sampler "euler" does, with ComfyUI's own scalings."""
    inner, sampling = model.model, model.get_model_object("model_sampling")
    empty = torch.zeros(shape)
    full = bool(torch.isclose(sampling.sigma_max, sigmas[0])) or bool(sigmas[0] > sampling.sigma_max)
    x = sampling.noise_scaling(sigmas[0], comfy.sample.prepare_noise(empty, seed), empty, full)
    if patch is not None:
        patch.begin(len(sigmas) - 1)
    with torch.no_grad():
        for step, (now, after) in enumerate(pairwise(sigmas)):
            if patch is not None:
                patch.step(step)
            x = x + (x - denoise(x, now[None])) / now * (after - now)
    return inner.process_latent_out(sampling.inverse_noise_scaling(sigmas[-1], x))


def unet(model: Any, source: Any, positive: list[Any], negative: list[Any], cfg: float) -> Denoise:
    """Both guidance passes in one batch; the size is what ComfyUI takes for one that nobody tells."""
    sampling = model.get_model_object("model_sampling")
    texts = [condition[0] for condition in (negative[0], positive[0])]
    pooled = torch.cat([condition[1].get("pooled_output") for condition in (negative[0], positive[0])])

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        given = torch.cat([sampling.calculate_input(sigma, x)] * 2)
        size = (8.0 * x.shape[-2], 8.0 * x.shape[-1])
        ids = torch.tensor([[*size, 0.0, 0.0, *size]] * 2)
        added = {"text_embeds": pooled, "time_ids": ids}
        time = sampling.timestep(sigma).float()
        added = {name: value.to(source.dtype) for name, value in added.items()}
        text = torch.cat(texts).to(source.dtype)
        both = source(given.to(source.dtype), time, text, added_cond_kwargs=added, return_dict=False)[0]
        without, with_text = (sampling.calculate_denoised(sigma, one, x) for one in both.float().chunk(2))
        return without + (with_text - without) * cfg

    return denoise


def flux(model: Any, source: Any, positive: list[Any], guidance: float) -> Denoise:
    """One pass, with latents packed as FluxPipeline packs them."""
    sampling = model.get_model_object("model_sampling")
    (text, others), *_ = positive

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        rows, columns = height // 2, width // 2
        packed = x.view(batch, channels, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        ids = torch.zeros(rows, columns, 3)
        ids[..., 1], ids[..., 2] = torch.arange(rows)[:, None], torch.arange(columns)
        given = source(
            hidden_states=packed.to(source.dtype),
            encoder_hidden_states=text.to(source.dtype).expand(batch, -1, -1),
            pooled_projections=others["pooled_output"].to(source.dtype).expand(batch, -1),
            timestep=sampling.timestep(sigma).expand(batch),
            guidance=torch.full((batch,), guidance),
            img_ids=ids.flatten(0, 1),
            txt_ids=torch.zeros(text.shape[1], 3),
            return_dict=False,
        )[0]
        given = given.float().view(batch, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(x.shape)
        return sampling.calculate_denoised(sigma, given, x)

    return denoise


def sd3(model: Any, source: Any, positive: list[Any]) -> Denoise:
    """One pass."""
    sampling = model.get_model_object("model_sampling")
    (text, others), *_ = positive

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        given = source(
            hidden_states=x.to(source.dtype),
            encoder_hidden_states=text.to(source.dtype).expand(len(x), -1, -1),
            pooled_projections=others["pooled_output"].to(source.dtype).expand(len(x), -1),
            timestep=sampling.timestep(sigma).expand(len(x)),
            return_dict=False,
        )[0]
        return sampling.calculate_denoised(sigma, given.float(), x)

    return denoise
