"""Compose training pictures on the fly: an object, jittered in place and size, on a coloured background."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from training.fetch import emoji_folder
from training.objects import COLOUR_NAMES, COLOURS, NAMES, OBJECTS, PHRASINGS, caption, held_out_pairs

SIZE = 128  # pixels per side of a picture
SPRITE = 144  # pixels per side of a stored object; a little above the size it is drawn at


@dataclass
class Pictures:
    """A batch: pixels (batch, 3, 128, 128) in [-1, 1]; indices (batch,) into NAMES, COLOUR_NAMES, PHRASINGS."""

    pixels: torch.Tensor
    objects: torch.Tensor
    colours: torch.Tensor
    phrasings: torch.Tensor

    def captions(self) -> list[str]:
        rows = zip(self.objects.tolist(), self.colours.tolist(), self.phrasings.tolist(), strict=True)
        return [caption(NAMES[o], COLOUR_NAMES[c], p) for o, c, p in rows]


def load_sprite(code: str) -> torch.Tensor:
    """One emoji as (4, SPRITE, SPRITE): alpha-multiplied RGB and alpha, in [0, 1]."""
    picture = Image.open(emoji_folder() / f"{code}.webp").convert("RGBA").resize((SPRITE, SPRITE), Image.LANCZOS)
    rgba = torch.from_numpy(np.asarray(picture).copy()).float().permute(2, 0, 1) / 255
    return torch.cat([rgba[:3] * rgba[3:], rgba[3:]])


def known_sprites() -> torch.Tensor:
    """The objects the denoisers learn: (48, 4, SPRITE, SPRITE), in the order of NAMES."""
    return torch.stack([load_sprite(code) for code in OBJECTS.values()])


def many_sprites(limit: int = 600) -> torch.Tensor:
    """A wide choice of single-code-point emoji, for the autoencoder: (limit, 4, SPRITE, SPRITE)."""
    codes = sorted(path.stem for path in emoji_folder().glob("*.webp") if "-" not in path.stem)
    step = max(1, len(codes) // limit)
    return torch.stack([load_sprite(code) for code in codes[::step][:limit]])


def place(sprites: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw sprites (batch, 4, SPRITE, SPRITE) 92 to 112 pixels wide, up to 8 pixels off centre, inside the frame."""
    count = len(sprites)
    width = 92 + 20 * torch.rand(count, generator=generator)
    room = torch.minimum((SIZE - width) / 2, torch.tensor(8.0))[:, None]
    shift = room * (2 * torch.rand(count, 2, generator=generator) - 1)
    zoom = SIZE / width
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = zoom
    theta[:, :, 2] = -shift * zoom[:, None] * 2 / SIZE
    grid = F.affine_grid(theta, [count, 4, SIZE, SIZE], align_corners=False)
    return F.grid_sample(sprites, grid, align_corners=False)


def backgrounds(colours: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Plain (half of them) or linear-gradient backgrounds (batch, 3, SIZE, SIZE) for colour indices (batch,)."""
    count = len(colours)
    base = torch.tensor(list(COLOURS.values()))[colours]
    base = base + 0.04 * (2 * torch.rand(count, 3, generator=generator) - 1)
    angle = 2 * torch.pi * torch.rand(count, generator=generator)
    axis = torch.linspace(-1, 1, SIZE)
    ramp = torch.cos(angle)[:, None, None] * axis + torch.sin(angle)[:, None, None] * axis[:, None]
    strength = 0.18 * torch.rand(count, generator=generator) * (torch.rand(count, generator=generator) < 0.5)
    return base[:, :, None, None] + (strength[:, None, None] * ramp)[:, None]


def draw(sprites: torch.Tensor, colours: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Sprites (batch, 4, SPRITE, SPRITE) over coloured backgrounds: pixels (batch, 3, SIZE, SIZE) in [-1, 1]."""
    front = place(sprites, generator)
    pixels = front[:, :3] + (1 - front[:, 3:]) * backgrounds(colours, generator)
    return pixels.clamp(0, 1) * 2 - 1


def allowed_pairs(held_out: bool) -> torch.Tensor:
    """(pairs, 2) object and colour indices: those for training, or those held out."""
    hidden = held_out_pairs()
    pairs = [(o, c) for o, name in enumerate(NAMES) for c, colour in enumerate(COLOUR_NAMES)
             if ((name, colour) in hidden) == held_out]  # fmt: skip
    return torch.tensor(pairs)


def compose(sprites: torch.Tensor, count: int, generator: torch.Generator, held_out: bool = False) -> Pictures:
    """`count` fresh captioned pictures of known_sprites(), from training pairs or from held-out ones."""
    pairs = allowed_pairs(held_out)
    objects, colours = pairs[torch.randint(len(pairs), (count,), generator=generator)].unbind(1)
    phrasings = torch.randint(len(PHRASINGS), (count,), generator=generator)
    return Pictures(draw(sprites[objects], colours, generator), objects, colours, phrasings)
