"""Where training keeps its data, checkpoints and logs: outside git, and where the finished weights go: inside."""

import os
from pathlib import Path

HERE = Path(__file__).parent
EMBEDDED = HERE.parent / "src" / "tomadiff" / "embedded"
PICTURES = HERE / "samples"


def training_dir() -> Path:
    """Root of everything a run writes; set TOMADIFF_TRAINING_DIR to move it."""
    root = Path(os.environ.get("TOMADIFF_TRAINING_DIR", Path.home() / ".cache" / "tomadiff" / "training"))
    root.mkdir(parents=True, exist_ok=True)
    return root


def stage_dir(stage: str) -> Path:
    """Folder of one stage: checkpoints, log.jsonl, sample grids."""
    folder = training_dir() / stage
    folder.mkdir(parents=True, exist_ok=True)
    return folder
