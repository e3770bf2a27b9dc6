"""Generates images with the guard on and prints a checksum of each; ``python -m tests.same_bytes --steps 20``.

For tests that start it several times, some of them beside a busy loop: all must print the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from hashlib import sha256
from typing import Any

import torch

import tomadiff
from tomadiff import embedded
from tomadiff.errors import SettingError

SETTINGS: dict[str, dict[str, Any]] = {
    "0.25": {"ratio": 0.25},
    "0.375": {"ratio": 0.375},
    "0.5": {"ratio": 0.5},
    "speedup": {"speedup": 1.2},
    "forecast": {"forecast": 0.1},
}
TOLD = ("guard:", "budget:", "computed")


def checksum(pipe: Any, settings: dict[str, Any], steps: int) -> str:
    """Of one image's latents and of what the patch said; of the error, if a speed-up is out of reach."""
    noise = torch.Generator().manual_seed(7)
    with tomadiff.apply(pipe, guard=True, **settings) as patch:
        try:
            latents = pipe(
                "a fox on a blue background", num_inference_steps=steps, generator=noise, output_type="latent"
            ).images
        except SettingError as problem:
            return f"error: {problem}"
        said = [line for line in patch.summary().splitlines() if any(word in line for word in TOLD)]
    return sha256(latents.numpy().tobytes()).hexdigest() + " " + " ".join(said)


def main() -> None:
    """Print ``{"emoji-sdxl 0.25": checksum, …}``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="*", default=["emoji-sdxl", "emoji-flux"])
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = {}
    for model in given.models:
        pipe = embedded.load(model)
        pipe.set_progress_bar_config(disable=True)
        for name in given.settings:
            found[f"{model} {name}"] = checksum(pipe, SETTINGS[name], given.steps)
            print(model, name, file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
