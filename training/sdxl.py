"""emoji-sdxl: a small UNet of SDXL's shape."""

from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import DPMSolverMultistepScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from torch import nn

from training import autoencoder, encoders, flow, workers
from training.compose import SIZE
from training.loop import Recipe, Trainer
from training.paths import stage_dir
from training.pool import Pool
from training.samples import glance
from training.text import clip_tokenizer, token_ids

RECIPE = Recipe("sdxl", steps=4200, learning_rate=1e-3, warmup=50, ema_decay=0.995, report_every=200, muon=True)
BATCH = 8  # many small steps: a picture is worth more early than a smooth gradient
WIDTH_1, WIDTH_2, TIME_WIDTH = 64, 128, 16
SETTINGS = dict(height=SIZE, width=SIZE, num_inference_steps=20, guidance_scale=3.0)


def build_unet(widths: tuple[int, ...] = (24, 48, 128, 192)) -> UNet2DConditionModel:
    """No attention at 64x64, transformers at 32x32 and 16x16, an 8x8 level below for the global shape."""
    return UNet2DConditionModel(
        sample_size=64, in_channels=4, out_channels=4, block_out_channels=widths, layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1, 2, 1), resnet_time_scale_shift="scale_shift",
        attention_head_dim=tuple(max(1, width // 32) for width in widths),
        cross_attention_dim=WIDTH_1 + WIDTH_2, use_linear_projection=True, norm_num_groups=8,
        addition_embed_type="text_time", addition_time_embed_dim=TIME_WIDTH,
        projection_class_embeddings_input_dim=WIDTH_2 + 6 * TIME_WIDTH,
    )  # fmt: skip


class TextToLatent(nn.Module):
    """Frozen text encoders and the UNet that trains, called as the SDXL pipeline calls them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.text_encoder = encoders.load("sdxl_1")
        self.text_encoder_2 = encoders.load("sdxl_2")
        self.unet = build_unet()
        nn.init.zeros_(self.unet.conv_out.weight)

    @torch.no_grad()
    def encode(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (batch, LENGTH) to states (batch, LENGTH, 192) and pooled text (batch, 128)."""
        first = self.text_encoder(ids, output_hidden_states=True)
        second = self.text_encoder_2(ids, output_hidden_states=True)
        return torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1), second.text_embeds

    def forward(self, noisy: torch.Tensor, sigma: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Velocity (batch, 4, 64, 64).  A dropped caption is zeros, as the pipeline makes an empty negative prompt."""
        states, pooled = self.encode(ids)
        sizes = torch.tensor([[SIZE, SIZE, 0, 0, SIZE, SIZE]], dtype=noisy.dtype).expand(len(noisy), -1)
        added = dict(text_embeds=pooled * keep[:, None], time_ids=sizes)
        return self.unet(noisy, sigma * 1000, states * keep[:, None, None], added_cond_kwargs=added).sample


def scheduler() -> DPMSolverMultistepScheduler:
    return DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=flow.SHIFT, solver_order=2
    )


def pipeline(model: TextToLatent) -> StableDiffusionXLPipeline:
    pipe = StableDiffusionXLPipeline(
        vae=autoencoder.load(), unet=model.unet, scheduler=scheduler(), add_watermarker=False,
        text_encoder=model.text_encoder, text_encoder_2=model.text_encoder_2,
        tokenizer=clip_tokenizer(), tokenizer_2=clip_tokenizer(),
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train() -> None:
    """Train, show a sample grid at every checkpoint, and save the pipeline's folder."""
    model, pool, tokenizer = TextToLatent(), Pool(), clip_tokenizer()

    def loss(_: int, generator: torch.Generator) -> torch.Tensor:
        count = BATCH // workers.count()
        latents, captions = pool.batch(count, generator)
        sigma = flow.noise_levels(count, generator)
        noisy, velocity = flow.add_noise(latents, sigma, generator)
        drawn = model(noisy, sigma, token_ids(tokenizer, captions), flow.keep_captions(count, generator))
        return F.mse_loss(drawn, velocity)

    def report(trainer: Trainer) -> None:
        glance(pipeline(model), SETTINGS, trainer.folder / f"samples-{trainer.step:06d}.png")

    trainer = Trainer(model, RECIPE)
    trainer.run(loss, report)
    trainer.use_average()
    if workers.rank() == 0:
        save(model, stage_dir("sdxl") / "emoji-sdxl")


def save(model: TextToLatent, folder: Path) -> None:
    pipeline(model).to(torch.float16).save_pretrained(folder)
