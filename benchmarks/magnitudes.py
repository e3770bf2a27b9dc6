"""How much residuals of emoji-flux grow from step to step, for MagCache: ``python -m benchmarks.magnitudes``.

Prints what stands in :data:`benchmarks.caches.MAGNITUDES`, as MagCache's own calibration measures it on tuning pairs.
"""

from __future__ import annotations

import ast
import io
from contextlib import redirect_stdout
from statistics import fmean

import torch
from diffusers import MagCacheConfig

from benchmarks.fidelity import PROMISED_PAIRS, pairs_of, trials_of

MODEL, STEPS, PAIRS = "emoji-flux", 20, 3


def main() -> None:
    torch.set_num_threads(1)
    trials, found = trials_of(MODEL, STEPS), []
    for pair in pairs_of(PAIRS, PROMISED_PAIRS):
        trials.pipe.transformer.enable_cache(MagCacheConfig(calibrate=True, num_inference_steps=STEPS))
        with redirect_stdout(io.StringIO()) as printed:
            trials.generate([pair])
        trials.pipe.transformer.disable_cache()
        found.append(ast.literal_eval(next(line for line in printed.getvalue().splitlines() if line.startswith("[1"))))
    print([round(fmean(ratios), 4) for ratios in zip(*found, strict=True)])


if __name__ == "__main__":
    main()
