"""Pictures as the pipelines learnt them, to measure FID against: python -m training.reference build/reference.

They show what the first `--prompts` of the embedded list say, `--each` of them; nothing is generated.
"""

import argparse
from pathlib import Path

import torch
from diffusers.image_processor import VaeImageProcessor

from tomadiff.evaluation.runs.prompts import load_prompts
from training.compose import draw, known_sprites
from training.objects import COLOUR_NAMES, NAMES, caption


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=15)
    parser.add_argument("--each", type=int, default=20)
    asked = parser.parse_args()
    pairs = {caption(name, colour): (o, c) for o, name in enumerate(NAMES) for c, colour in enumerate(COLOUR_NAMES)}
    wanted = [pairs[prompt.text] for prompt in load_prompts("emoji", limit=asked.prompts)]
    objects, colours = torch.tensor(wanted).repeat(asked.each, 1).unbind(1)
    pixels = draw(known_sprites()[objects], colours, torch.Generator().manual_seed(0))
    asked.folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(VaeImageProcessor().postprocess(pixels)):
        image.save(asked.folder / f"{number:04d}.png")
    print(f"{len(pixels)} pictures in {asked.folder}")


if __name__ == "__main__":
    main()
