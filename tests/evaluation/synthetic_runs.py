"""Stand-ins that are quick: runs whose images are painted, not denoised, and an architecture that is thin."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tomadiff.evaluation.runs.record import Run, Sample
from tomadiff.evaluation.runs.synthetic_image import synthetic_image
from tomadiff.evaluation.timing.architectures import ARCHITECTURES

NASTY = "<script>document.title = 'hacked'</script><img src=x onerror=alert(1)> \"fox\" | `a` </title>"


def painted_run(
    folder: Path,
    prompts: Sequence[str] = ("a lake", NASTY),
    methods: Sequence[str] = ("toma",),
    size: int = 64,
) -> Run:
    """Landscapes that blur as more tokens merge."""
    run = Run.begin(
        folder,
        {"model": "painted", "call": {"num_inference_steps": 4}},
        {"cpu": "a brush", "torch": "0"},
    )
    for place, prompt in enumerate(prompts):
        image = Image.fromarray((synthetic_image(size, seed=place) * 255).astype(np.uint8))
        run.add(Sample("full", 0, prompt, 0, 2.0, 2e12), image)
        for method in methods:
            for ratio in (0.25, 0.5, 0.75):
                merged = image.filter(ImageFilter.GaussianBlur(ratio * 2))
                run.add(
                    Sample(method, ratio, prompt, 0, 2 - ratio, 2e12 * (1 - ratio / 2)),
                    merged,
                )
    return run


def thin_sd15(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make "sd15" an architecture of the same shape with few channels."""
    known = ARCHITECTURES["sd15"]
    config = {**known.config, "block_out_channels": (32, 32, 64, 64), "attention_head_dim": 2}
    monkeypatch.setitem(ARCHITECTURES, "sd15", replace(known, config=config))
