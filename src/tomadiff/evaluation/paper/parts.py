"""Which experiments go together: by kind of model, by number of steps, and by the folder of their run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tomadiff.evaluation.metrics.samples import Group
from tomadiff.evaluation.paper.experiment import Experiment
from tomadiff.evaluation.paper.experiments import TABLES, experiments_of
from tomadiff.evaluation.runs.variants import Variant

KINDS = {"emoji-sdxl": "unet", "emoji-flux": "transformer"}
"""The embedded pipelines, and the kind of model each stands for."""


def variants_of(experiments: Sequence[Experiment]) -> list[Variant]:
    """Everything that they compare, once."""
    return list(dict.fromkeys(each for one in experiments for each in one.variants))


def by_steps(
    experiments: Sequence[Experiment], call: dict[str, Any], asked: int | None
) -> list[tuple[dict[str, Any], list[Experiment]]]:
    """Experiments by what they call a pipeline with: as many steps as was asked for, or the paper's, or the model's."""
    parts: dict[int, list[Experiment]] = {}
    usual = call["num_inference_steps"]
    for one in experiments:
        parts.setdefault(usual if asked is not None or one.steps is None else one.steps, []).append(one)
    return [({**call, "num_inference_steps": steps}, part) for steps, part in parts.items()]


def kind_of_run(groups: Collection[Group]) -> str:
    """Whether a UNet or a transformer generated a run, by what is compared in it."""
    unet, transformer = ({one.group for one in variants_of(experiments_of(TABLES, kind))} for kind in KINDS.values())
    return "unet" if (unet - transformer).intersection(groups) else "transformer"


def kind_of(pipe: Any) -> str:
    """Whether a UNet or a transformer denoises."""
    return "unet" if getattr(pipe, "unet", None) is not None else "transformer"


def folder_of(model: str, steps: int | None = None) -> str:
    """A name for a model's run: ``"owner/name"`` → ``"owner--name"``, ``"./saved/mine"`` → ``"mine"``.

    A run with other ``steps`` than the model's own has a folder beside it.
    """
    path = Path(model)
    name = path.resolve().name if path.is_dir() else model.replace("/", "--")
    return name if steps is None else f"{name}-{steps}-steps"
