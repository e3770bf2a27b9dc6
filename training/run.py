"""Run the stages in order, each resuming from its checkpoint: python -m training.run [stage ...]."""

import argparse
import importlib
import os

from training.workers import launch

# Processes per stage.  The judge compares pictures within its batch, so it stays in one.
STAGES = {"autoencoder": 1, "judge": 1, "pool": 1, "encoders": 1, "sdxl": 2, "flux": 2, "few_sdxl": 1, "few_flux": 1}
SHIPPED = [stage for stage in STAGES if not stage.startswith("few_")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", default=SHIPPED, help=f"some of {', '.join(STAGES)}")
    parser.add_argument("--workers", type=int, help="processes for the denoisers; 1 wastes least on a busy machine")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for stage in arguments.stages:
        workers = min(STAGES[stage], arguments.workers or STAGES[stage])
        launch(importlib.import_module(f"training.{stage}").train, workers)


if __name__ == "__main__":
    main()
