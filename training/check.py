"""Measure what the embedded models must hold, and print it: python -m training.check [emoji-sdxl emoji-flux]."""

import argparse
import itertools
import json
import random
import time

import numpy as np
import torch
from transformers import CLIPModel

from tomadiff import embedded
from training.autoencoder import psnr
from training.compose import Pictures, compose, known_sprites
from training.objects import COLOUR_NAMES, FIRST, NAMES, caption, held_out_pairs
from training.paths import stage_dir
from training.samples import draw_prompts
from training.text import clip_tokenizer, token_ids

CAPTIONS = 50
Pair = tuple[str, str]


def hard_captions(right: Pair, chooser: random.Random) -> list[str]:
    """The right caption first, then 49 wrong ones: its object on every other colour, others on its colour, others."""
    name, colour = right
    same_object = [(name, other) for other in COLOUR_NAMES if other != colour]
    same_colour = [(other, colour) for other in chooser.sample(NAMES, 26) if other != name][:25]
    wrong = same_object + same_colour
    while len(wrong) < CAPTIONS - 1:
        pair = chooser.choice(NAMES), chooser.choice(COLOUR_NAMES)
        if pair != right and pair not in wrong:
            wrong.append(pair)
    return [caption(*pair) for pair in [right, *wrong]]


@torch.no_grad()
def right_first(judge: CLIPModel, pixels: torch.Tensor, pairs: list[Pair]) -> list[bool]:
    """For each picture (count, 3, 128, 128) in [-1, 1]: does the judge rank its caption first among 50?"""
    chooser, tokenizer, hits = random.Random(0), clip_tokenizer(), []
    for picture, pair in zip(pixels, pairs, strict=True):
        ids = token_ids(tokenizer, hard_captions(pair, chooser))
        scores = judge(input_ids=ids, pixel_values=picture[None]).logits_per_image[0]
        hits.append(bool(scores.argmax() == 0))
    return hits


def pairs_of(pictures: Pictures) -> list[Pair]:
    rows = zip(pictures.objects.tolist(), pictures.colours.tolist(), strict=True)
    return [(NAMES[o], COLOUR_NAMES[c]) for o, c in rows]


def check_judge(judge: CLIPModel, count: int = 200) -> dict[str, float]:
    """Share of fresh real compositions whose caption wins, for known and for held-out pairs."""
    sprites, figures = known_sprites(), {}
    for label, held_out in (("known", False), ("held_out", True)):
        pictures = compose(sprites, count, torch.Generator().manual_seed(990 + held_out), held_out)
        figures[f"real_{label}"] = float(np.mean(right_first(judge, pictures.pixels, pairs_of(pictures))))
    return figures


@torch.no_grad()
def check_autoencoder(pipe: torch.nn.Module) -> dict[str, float]:
    pictures = compose(known_sprites(), 64, torch.Generator().manual_seed(991), held_out=True).pixels
    drawn = pipe.vae.decode(pipe.vae.encode(pictures).latent_dist.mean).sample
    values = psnr(drawn, pictures)
    return dict(psnr_mean=values.mean().item(), psnr_min=values.min().item())


def asked_pairs(count: int, names: tuple[str, ...]) -> list[Pair]:
    """Every held-out pair of `names` once, then all their other pairs in random order, again and again."""
    pairs = [(name, colour) for name in names for colour in COLOUR_NAMES]
    hidden = [pair for pair in pairs if pair in held_out_pairs()]
    rest = [pair for pair in pairs if pair not in held_out_pairs()]
    random.Random(1).shuffle(rest)
    return list(itertools.islice(itertools.chain(hidden, itertools.cycle(rest)), count))


def check_pipeline(name: str, judge: CLIPModel, pairs: list[Pair]) -> dict[str, float]:
    """Judge accuracy on generated pictures, difference between seeds, and times."""
    started = time.time()
    pipe, settings = embedded.load(name), embedded.settings(name)
    loaded = time.time() - started
    drawn = draw_prompts(pipe, settings, [caption(*pair) for pair in pairs], list(range(len(pairs))))
    hits = right_first(judge, torch.from_numpy(drawn).permute(0, 3, 1, 2) * 2 - 1, pairs)
    hidden = [hit for hit, pair in zip(hits, pairs, strict=True) if pair in held_out_pairs()]
    figures = dict(generated=float(np.mean(hits)), generated_held_out=float(np.mean(hidden)))
    figures |= check_autoencoder(pipe) | check_seeds(pipe, settings)
    return figures | dict(load_seconds=loaded, draw_seconds=draw_seconds(pipe, settings))


def check_seeds(pipe: torch.nn.Module, settings: dict) -> dict[str, float]:
    """Mean pixel difference (0 to 255, root mean square) between pictures of one prompt and four seeds."""
    drawn = draw_prompts(pipe, settings, [caption("fox", "blue")] * 4, [0, 1, 2, 3])
    gaps = [np.sqrt(np.mean((drawn[i] - drawn[j]) ** 2)) * 255 for i in range(4) for j in range(i)]
    return dict(seed_difference_min=float(min(gaps)), seed_difference_mean=float(np.mean(gaps)))


def draw_seconds(pipe: torch.nn.Module, settings: dict) -> float:
    times = []
    for _ in range(3):
        started = time.time()
        pipe(caption("fox", "blue"), **settings)
        times.append(time.time() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=embedded.pipelines())
    parser.add_argument("--count", type=int, default=200, help="generated pictures per pipeline")
    parser.add_argument("--all", action="store_true", help="ask for all 48 objects, not only those learnt first")
    arguments = parser.parse_args()
    pairs = asked_pairs(arguments.count, NAMES if arguments.all else FIRST)
    judge = embedded.load("emoji-judge")
    figures = {"emoji-judge": check_judge(judge)}
    for name in arguments.names:
        figures[name] = check_pipeline(name, judge, pairs)
    print(json.dumps(figures, indent=2))
    (stage_dir("check") / "figures.json").write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
