"""Teach the text encoders to read before the denoisers need them: a minute instead of an hour of vague gradients.

A caption's pooled text becomes a fixed code, orthogonal between objects and between colours, and its token states
tell both apart.  Learning that through a denoiser's loss left captions unheard after 500 steps.
"""

import torch
import torch.nn.functional as F
from torch import nn

from training.loop import Recipe, Trainer
from training.objects import COLOUR_NAMES, NAMES, PHRASINGS, caption
from training.paths import stage_dir
from training.text import clip_text, clip_tokenizer, t5_text, t5_tokenizer, token_ids

RECIPE = Recipe("encoders", steps=500, learning_rate=2e-3, ema_decay=0.98, report_every=100)
BATCH, CODE = 48, 64  # one code for the object, one for the colour, side by side in 128 numbers


def fresh() -> dict[str, nn.Module]:
    """The two encoders of emoji-sdxl and the two of emoji-flux, untrained."""
    return dict(
        sdxl_1=clip_text(64), sdxl_2=clip_text(128, projected=True), flux_1=clip_text(128), flux_2=t5_text(128)
    )  # fmt: skip


def build() -> nn.ModuleDict:
    """All encoders, and a linear probe on the states of each."""
    torch.manual_seed(4)
    encoders = fresh()
    answers = len(NAMES) + len(COLOUR_NAMES)
    probes = {f"{name}_probe": nn.Linear(64 if name == "sdxl_1" else 128, answers) for name in encoders}
    return nn.ModuleDict(encoders | probes)


def codes(objects: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
    """Pooled text to aim at, (batch, 128) of +-1: rows of a Hadamard matrix."""
    rows = torch.ones(1, 1)
    while len(rows) < CODE:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    return torch.cat([rows[objects + 1], rows[colours + 1]], 1)


def read(model: nn.ModuleDict, captions: list[str]) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """States (batch, LENGTH, width) of each encoder as its pipeline takes them, and pooled text where it is used."""
    clip_ids, t5_ids = token_ids(clip_tokenizer(), captions), token_ids(t5_tokenizer(), captions)
    first = model["sdxl_1"](clip_ids, output_hidden_states=True)
    second = model["sdxl_2"](clip_ids, output_hidden_states=True)
    pooled = [second.text_embeds, model["flux_1"](clip_ids).pooler_output]
    states = dict(sdxl_1=first.hidden_states[-2], sdxl_2=second.hidden_states[-2])
    return states | dict(flux_2=model["flux_2"](t5_ids).last_hidden_state), pooled


def train() -> None:
    """Train on the text of random captions; no picture is involved.  Saves one folder per encoder."""
    model = build()

    def loss(step: int, generator: torch.Generator) -> torch.Tensor:
        objects = torch.randint(len(NAMES), (BATCH,), generator=generator)
        colours = torch.randint(len(COLOUR_NAMES), (BATCH,), generator=generator)
        phrasings = torch.randint(len(PHRASINGS), (BATCH,), generator=generator).tolist()
        rows = zip(objects.tolist(), colours.tolist(), phrasings, strict=True)
        states, pooled = read(model, [caption(NAMES[o], COLOUR_NAMES[c], p) for o, c, p in rows])
        total = sum(F.mse_loss(text, codes(objects, colours)) for text in pooled)
        for name, state in states.items():
            answers = model[f"{name}_probe"](state.mean(1))
            total = total + F.cross_entropy(answers[:, : len(NAMES)], objects)
            total = total + F.cross_entropy(answers[:, len(NAMES) :], colours)
        return total

    trainer = Trainer(model, RECIPE)
    trainer.run(loss)
    trainer.use_average()
    for name in ("sdxl_1", "sdxl_2", "flux_1", "flux_2"):
        model[name].save_pretrained(stage_dir("encoders") / name)


def load(name: str) -> nn.Module:
    """One trained encoder, frozen."""
    model = type(fresh()[name]).from_pretrained(stage_dir("encoders") / name)
    return model.eval().requires_grad_(False)
