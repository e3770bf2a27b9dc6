"""Draw the loss curves of all stages into training/samples/losses.png: python -m training.curves."""

import json

import matplotlib
import numpy as np

from training.paths import PICTURES, stage_dir

matplotlib.use("Agg")
from matplotlib import pyplot as plt

STAGES = ("autoencoder", "judge", "sdxl", "flux")


def read_log(stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Minutes of training and loss, both (lines,), of a stage; empty if it never ran."""
    path = stage_dir(stage) / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return np.array([line["seconds"] / 60 for line in lines]), np.array([line["loss"] for line in lines])


def smooth(values: np.ndarray, window: int = 9) -> np.ndarray:
    padded = np.pad(values, (window // 2, window // 2), mode="edge")
    return np.convolve(padded, np.ones(window) / window, mode="valid")


def main() -> None:
    figure, axes = plt.subplots(1, len(STAGES), figsize=(3.2 * len(STAGES), 2.6), constrained_layout=True)
    for axis, stage in zip(axes, STAGES, strict=True):
        minutes, losses = read_log(stage)
        axis.set(title=stage, xlabel="minutes", yscale="log")
        if len(losses):
            axis.plot(minutes, losses, linewidth=0.5, alpha=0.4)
            axis.plot(minutes, smooth(losses), linewidth=1.5)
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / "losses.png", dpi=80)


if __name__ == "__main__":
    main()
