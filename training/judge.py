"""emoji-judge: a small CLIP that tells which caption belongs to which picture."""

import torch
import torch.nn.functional as F
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPVisionConfig

from training.compose import SIZE, Pictures, compose, known_sprites
from training.loop import Recipe, Trainer
from training.objects import COLOUR_NAMES, NAMES, caption
from training.paths import stage_dir
from training.text import clip_config, clip_tokenizer, token_ids

RECIPE = Recipe("judge", steps=320, learning_rate=1e-3, ema_decay=0.99, report_every=100, muon=True)
BATCH, WIDTH = 96, 128


def build() -> CLIPModel:
    torch.manual_seed(1)
    vision = CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=4, num_attention_heads=4,
        image_size=SIZE, patch_size=16, projection_dim=WIDTH, hidden_act="gelu",
    )  # fmt: skip
    text = clip_config(WIDTH)
    return CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=WIDTH))


def processor() -> CLIPProcessor:
    """Turns pictures of any size into what the judge was trained on: 128x128, pixels in [-1, 1]."""
    images = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=SIZE, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return CLIPProcessor(image_processor=images, tokenizer=clip_tokenizer())


def spoil(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise some pictures: the judge must not lean on details a generated picture gets slightly wrong."""
    strength = 0.15 * torch.rand(len(pixels), 1, 1, 1, generator=generator)
    return pixels + strength * torch.randn(pixels.shape, generator=generator)


def contrastive_loss(model: CLIPModel, pictures: Pictures, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Pictures against captions both ways; two pictures of one object-colour pair are both right."""
    logits = model(input_ids=ids, pixel_values=pixels).logits_per_image
    pair = pictures.objects * len(COLOUR_NAMES) + pictures.colours
    same = (pair[:, None] == pair[None]).float()
    target = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def accuracy(model: CLIPModel, pictures: Pictures) -> float:
    """Share of pictures whose caption wins among all 384 object-colour captions."""
    captions = [caption(name, colour) for name in NAMES for colour in COLOUR_NAMES]
    logits = model(input_ids=token_ids(clip_tokenizer(), captions), pixel_values=pictures.pixels).logits_per_image
    return (logits.argmax(1) == pictures.objects * len(COLOUR_NAMES) + pictures.colours).float().mean().item()


def train() -> None:
    """Train and save the judge as a transformers folder."""
    model, sprites, tokenizer = build(), known_sprites(), clip_tokenizer()
    seen = compose(sprites, 200, torch.Generator().manual_seed(11))
    unseen = compose(sprites, 200, torch.Generator().manual_seed(12), held_out=True)

    def loss(step: int, generator: torch.Generator) -> torch.Tensor:
        pictures = compose(sprites, BATCH, generator)
        ids = token_ids(tokenizer, pictures.captions())
        return contrastive_loss(model, pictures, ids, spoil(pictures.pixels, generator))

    def report(trainer: Trainer) -> None:
        known, new = accuracy(model, seen), accuracy(model, unseen)
        print(f"judge step {trainer.step}: first of 384, known pairs {known:.3f}, held-out {new:.3f}", flush=True)

    trainer = Trainer(model, RECIPE)
    trainer.run(loss, report)
    folder = stage_dir("judge") / "emoji-judge"
    trainer.use_average().save_pretrained(folder)
    processor().save_pretrained(folder)


def load() -> CLIPModel:
    return CLIPModel.from_pretrained(stage_dir("judge") / "emoji-judge").eval()
