"""Loss curves of all stages, and samples of a stage over time, into training/samples: python -m training.curves."""

import json

import matplotlib
import numpy as np
from PIL import Image

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


def over_time(stage: str, lines: int = 6) -> None:
    """Some of the sample grids that a stage drew on the way, earliest first, one below the other."""
    grids = sorted(stage_dir(stage).glob("samples-*.png"))
    if not grids:
        return
    chosen = [grids[place] for place in np.unique(np.linspace(0, len(grids) - 1, lines).round().astype(int))]
    rows = [Image.open(path).convert("RGB") for path in chosen]
    width = max(row.width for row in rows)
    scaled = [row.resize((width, round(row.height * width / row.width))) for row in rows]
    sheet = Image.new("RGB", (width, sum(row.height for row in scaled)))
    top = 0
    for row in scaled:
        sheet.paste(row, (0, top))
        top += row.height
    sheet.save(PICTURES / f"{stage}-over-time.png")
    print(f"{stage}: {', '.join(path.stem for path in chosen)}")


def losses() -> None:
    figure, axes = plt.subplots(1, len(STAGES), figsize=(3.2 * len(STAGES), 2.6), constrained_layout=True)
    for axis, stage in zip(axes, STAGES, strict=True):
        minutes, losses = read_log(stage)
        axis.set(title=stage, xlabel="minutes", yscale="log")
        if len(losses):
            axis.plot(minutes, losses, linewidth=0.5, alpha=0.4)
            axis.plot(minutes, smooth(losses), linewidth=1.5)
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / "losses.png", dpi=80)


def main() -> None:
    losses()
    for stage in ("sdxl", "flux"):
        over_time(stage)


if __name__ == "__main__":
    main()
