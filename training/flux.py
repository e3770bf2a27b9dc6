"""emoji-flux: a small Flux transformer, trained on small pictures first."""

from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import nn

from training import autoencoder, encoders, flow, workers
from training.compose import SIZE
from training.loop import Recipe, Trainer
from training.objects import caption
from training.paths import stage_dir
from training.pool import Pool
from training.samples import PAIRS, glance, grid
from training.text import LENGTH, clip_tokenizer, t5_tokenizer, token_ids

RECIPE = Recipe("flux", steps=2500, learning_rate=1e-3, ema_decay=0.995, report_every=250, muon=True)
# Tokens per side, batch, and the step each begins at: global shape is learnt where it is cheap.
GROWTH = ((0, 8, 32), (800, 16, 16), (1900, 32, 8))
GUIDED_FROM = 1600  # guidance is baked in from there, in every second step
HEADS, HEAD_WIDTH, TEXT_WIDTH = 6, 32, 128
SETTINGS = dict(height=SIZE, width=SIZE, num_inference_steps=20, guidance_scale=2.5, max_sequence_length=LENGTH)


def build_transformer() -> FluxTransformer2DModel:
    return FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=4, num_single_layers=8, attention_head_dim=HEAD_WIDTH,
        num_attention_heads=HEADS, joint_attention_dim=TEXT_WIDTH, pooled_projection_dim=TEXT_WIDTH,
        guidance_embeds=True, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip


@torch.no_grad()
def start_as_identity(transformer: FluxTransformer2DModel) -> None:
    """Zero what modulates blocks and what leaves the model (adaLN-Zero): training starts calm."""
    for name, module in transformer.named_modules():
        if name.endswith(("norm.linear", "norm1.linear", "norm1_context.linear", "norm_out.linear")):
            module.weight.zero_()
            module.bias.zero_()
    transformer.proj_out.weight.zero_()


def pack(latents: torch.Tensor) -> torch.Tensor:
    """(batch, 4, h, w) to tokens (batch, h/2 * w/2, 16), channel-major inside a token as FluxPipeline packs."""
    return F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)


def positions(side: int) -> torch.Tensor:
    """Rotary coordinates (side * side, 3) on the full 32x32 token grid; a smaller grid has the same extent."""
    step = 32 / side
    axis = torch.arange(side) * step + (step - 1) / 2
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).view(-1, 3)


def growth_at(step: int) -> tuple[int, int]:
    """Tokens per side and batch size of a step."""
    return next((side, batch) for start, side, batch in reversed(GROWTH) if step >= start)


class TextToTokens(nn.Module):
    """Frozen text encoders and the transformer that trains, called as FluxPipeline calls them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.text_encoder = encoders.load("flux_1")
        self.text_encoder_2 = encoders.load("flux_2")
        self.transformer = build_transformer()
        start_as_identity(self.transformer)

    def forward(
        self, noisy: torch.Tensor, sigma: torch.Tensor, ids: tuple[torch.Tensor, torch.Tensor], guidance: torch.Tensor
    ) -> torch.Tensor:
        """Velocity of tokens (batch, tokens, 16) at sigma (batch,); ids are CLIP's and T5's, (batch, LENGTH) each."""
        with torch.no_grad():
            pooled = self.text_encoder(ids[0]).pooler_output
            states = self.text_encoder_2(ids[1]).last_hidden_state
        return self.transformer(
            hidden_states=noisy, timestep=sigma, guidance=guidance, pooled_projections=pooled,
            encoder_hidden_states=states, txt_ids=torch.zeros(LENGTH, 3),
            img_ids=positions(round(noisy.shape[1] ** 0.5)),
        ).sample  # fmt: skip


def compile_blocks(transformer: FluxTransformer2DModel) -> None:
    """A fifth faster: most of a step's time outside products goes to small element-wise operations."""
    torch._dynamo.config.recompile_limit = 16  # three grids, each with and without gradients
    for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
        block.compile(dynamic=False)


class Objective:
    """The loss of a step: plain flow matching, and later, in turn, flow matching towards the guided velocity."""

    def __init__(self, model: TextToTokens):
        self.model, self.pool = model, Pool()
        self.tokenizers = clip_tokenizer(), t5_tokenizer()

    def ids(self, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        return token_ids(self.tokenizers[0], captions), token_ids(self.tokenizers[1], captions)

    def __call__(self, step: int, generator: torch.Generator) -> torch.Tensor:
        side, batch = growth_at(step)
        count = batch // workers.count()
        latents, captions = self.pool.batch(count, generator)
        sigma = flow.noise_levels(count, generator)
        noisy, velocity = flow.add_noise(pack(F.avg_pool2d(latents, 32 // side)), sigma, generator)
        keep = flow.keep_captions(count, generator)
        captions = [text if kept else "" for text, kept in zip(captions, keep, strict=True)]
        guidance = torch.ones(count)
        if step >= GUIDED_FROM and step % 2:
            guidance = 1 + keep * 3 * torch.rand(count, generator=generator)
            velocity = velocity + self.push(noisy, sigma, captions, guidance)
        return F.mse_loss(self.model(noisy, sigma, self.ids(captions), guidance), velocity)

    @torch.no_grad()
    def push(
        self, noisy: torch.Tensor, sigma: torch.Tensor, captions: list[str], guidance: torch.Tensor
    ) -> torch.Tensor:
        """(guidance - 1) times what the caption changes: the model learns its own guided velocity in one pass."""
        plain = torch.ones_like(guidance)
        told = self.model(noisy, sigma, self.ids(captions), plain)
        untold = self.model(noisy, sigma, self.ids([""] * len(captions)), plain)
        return (guidance - 1)[:, None, None] * (told - untold)


def pipeline(model: TextToTokens) -> FluxPipeline:
    pipe = FluxPipeline(
        vae=autoencoder.load(), transformer=model.transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=flow.SHIFT),
        text_encoder=model.text_encoder, text_encoder_2=model.text_encoder_2,
        tokenizer=clip_tokenizer(), tokenizer_2=t5_tokenizer(),
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe


def save_small_grid(objective: Objective, side: int, path: Path) -> None:
    """Small pictures from few tokens, as trained on first: the pipeline itself always draws at full density."""
    prompts = [caption(name, colour) for name, colour in PAIRS]
    ids, untold = objective.ids(prompts), objective.ids([""] * len(prompts))
    noise = torch.randn(len(prompts), side * side, 16, generator=torch.Generator().manual_seed(0))
    plain = torch.ones(len(prompts))

    def velocity(noisy: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        low, high = (objective.model(noisy, sigma, tokens, plain) for tokens in (untold, ids))
        return low + 2.5 * (high - low)

    latents = F.pixel_shuffle(flow.euler(velocity, noise).transpose(1, 2).unflatten(2, (side, side)), 2)
    pixels = autoencoder.load().decode(latents).sample.clamp(-1, 1) / 2 + 0.5
    grid(pixels.permute(0, 2, 3, 1).numpy(), 8).save(path)


def train() -> None:
    """Train, show a sample grid at every checkpoint, and save the pipeline's folder."""
    model = TextToTokens()
    compile_blocks(model.transformer)
    objective = Objective(model)

    def report(trainer: Trainer) -> None:
        side, _ = growth_at(trainer.step - 1)
        path = trainer.folder / f"samples-{trainer.step:06d}.png"
        if side < 32:
            return save_small_grid(objective, side, path)
        glance(pipeline(model), SETTINGS, path)

    trainer = Trainer(model, RECIPE)
    trainer.run(objective, report)
    trainer.use_average()
    if workers.rank() == 0:
        save(model, stage_dir("flux") / "emoji-flux")


def save(model: TextToTokens, folder: Path) -> None:
    pipeline(model).to(torch.float16).save_pretrained(folder)
