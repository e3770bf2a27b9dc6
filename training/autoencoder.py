"""The one small autoencoder of both pipelines: 128x128x3 pictures to 64x64x4 latents of unit variance."""

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from training.compose import COLOUR_NAMES, SIZE, compose, draw, known_sprites, many_sprites
from training.loop import Recipe, Trainer
from training.paths import stage_dir

RECIPE = Recipe("autoencoder", steps=1500, learning_rate=2e-3, ema_decay=0.99, report_every=100)
CROP, CROP_STEPS, BATCH = 64, 1300, 16
LATENT_NOISE = 0.1  # share of a latent's spread: the decoder learns to forgive a denoiser's errors


def build() -> AutoencoderKL:
    """No attention and one layer per block: decoding must be cheap next to twenty denoising steps."""
    torch.manual_seed(0)
    model = AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(16, 32), layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8, mid_block_add_attention=False, sample_size=SIZE, scaling_factor=1.0, shift_factor=0.0,
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last)


def batch(sprites: torch.Tensor, step: int, generator: torch.Generator) -> torch.Tensor:
    """Crops (16, 3, 64, 64) while learning textures, then whole pictures (8, 3, 128, 128) for the norms' statistics."""
    count = BATCH if step < CROP_STEPS else BATCH // 2
    chosen = sprites[torch.randint(len(sprites), (count,), generator=generator)]
    colours = torch.randint(len(COLOUR_NAMES), (count,), generator=generator)
    pixels = draw(chosen, colours, generator)
    if step < CROP_STEPS:
        top, left = torch.randint(SIZE - CROP, (2,), generator=generator).tolist()
        pixels = pixels[:, :, top : top + CROP, left : left + CROP]
    return pixels.contiguous(memory_format=torch.channels_last)


def reconstruction_loss(model: AutoencoderKL, pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """L1 + L2 of the picture, and of a half-size picture decoded from pooled latents.

    The second term keeps latents smooth, like a small picture: easier to denoise, and it lets the
    transformer begin at half resolution.
    """
    latents = model.encode(pixels).latent_dist.mean
    noise = torch.randn(latents.shape, generator=generator) * latents.detach().std() * LATENT_NOISE
    loss = distance(model.decode(latents + noise).sample, pixels)
    half = model.decode(F.avg_pool2d(latents, 2)).sample
    return loss + 0.25 * distance(half, F.avg_pool2d(pixels, 2)) + 1e-4 * latents.square().mean()


def distance(drawn: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.l1_loss(drawn, wanted) + 4 * F.mse_loss(drawn, wanted)


def psnr(drawn: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Peak signal-to-noise ratio per picture, in dB, of pixels (batch, 3, h, w) in [-1, 1]."""
    return 10 * torch.log10(4 / (drawn.clamp(-1, 1) - wanted).square().flatten(1).mean(1))


@torch.no_grad()
def normalise(model: AutoencoderKL, sprites: torch.Tensor) -> None:
    """Fold each latent channel's mean and spread into the 1x1 convolutions around the latent.

    Both pipelines then need no shift and no scale, which they would read from different settings.
    """
    pixels = compose(sprites, 256, torch.Generator().manual_seed(7)).pixels
    latents = model.encode(pixels).latent_dist.mean
    mean, spread = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    channels = len(mean)
    model.post_quant_conv.bias += model.post_quant_conv.weight[:, :, 0, 0] @ mean
    model.post_quant_conv.weight *= spread[None, :, None, None]
    model.quant_conv.bias[:channels] = (model.quant_conv.bias[:channels] - mean) / spread
    model.quant_conv.weight[:channels] /= spread[:, None, None, None]
    # What is stored is a point, not a cloud: a tiny fixed variance.
    model.quant_conv.weight[channels:] = 0
    model.quant_conv.bias[channels:] = -12


def train() -> None:
    """Train, normalise and save the autoencoder as a diffusers folder."""
    model, sprites, known = build(), many_sprites(), known_sprites()
    trainer = Trainer(model, RECIPE)
    held_out = compose(known, 64, torch.Generator().manual_seed(5), held_out=True).pixels

    def report(trainer: Trainer) -> None:
        drawn = model.decode(model.encode(held_out).latent_dist.mean).sample
        print(f"autoencoder step {trainer.step}: held-out PSNR {psnr(drawn, held_out).mean():.2f} dB", flush=True)

    trainer.run(lambda step, g: reconstruction_loss(model, batch(sprites, step, g), g), report)
    trainer.use_average()
    normalise(model, known)
    report(trainer)
    model.save_pretrained(stage_dir("autoencoder") / "vae")


def load() -> AutoencoderKL:
    return AutoencoderKL.from_pretrained(stage_dir("autoencoder") / "vae").eval()
