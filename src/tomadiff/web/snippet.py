"""The lines of Python that generate what the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from tomadiff.methods.base import Method
from tomadiff.steps.schedule import Schedule


@dataclass(frozen=True)
class Origin:
    """Where a pipeline comes from: the module that loads it, and the expression that does."""

    module: str
    expression: str


def origin(name: str, about: Mapping[str, str], embedded: bool) -> Origin:
    """How to load a pipeline as it was loaded here.

    Args:
        name: of an embedded pipeline, or where diffusers finds it.
        about: its device and dtype; see :func:`tomadiff.evaluation.runs.models.describe`.
        embedded: which of the two.
    """
    quoted, dtype = _quoted(name), f"torch.{about['dtype']}"
    place = "" if about["device"] == "cpu" else f".to({_quoted(about['device'])})"
    if embedded:
        return Origin("tomadiff.embedded", f"tomadiff.embedded.load({quoted}, dtype={dtype}){place}")
    loading = f"diffusers.DiffusionPipeline.from_pretrained({quoted}, torch_dtype={dtype}){place}"
    return Origin("diffusers", loading)


def three_lines(
    source: Origin,
    method: Method | None,
    schedule: Schedule,
    prompt: str,
    seed: int,
    call: Mapping[str, Any],
    forecast: float = 0.0,
) -> str:
    """Load, patch and generate, below the imports they need.

    Args:
        source: of the pipeline.
        method: how tokens merge; ``None`` merges nothing.
        schedule: written only where it is not the method's own.
        prompt: what to generate.
        seed: of the noise.
        call: what else the pipeline is called with.
        forecast: tolerance of forecast steps; 0 for none, or without a method for what is recommended.
    """
    settings = "".join(f", {name}={value!r}" for name, value in call.items())
    noise = f"generator=torch.Generator().manual_seed({seed})"
    return "\n".join(
        [
            *(f"import {module}" for module in sorted({"torch", "tomadiff", source.module})),
            "",
            f"pipe = {source.expression}",
            f"patch = tomadiff.apply({', '.join(_applied(method, schedule, forecast))})",
            f"image = pipe({_quoted(prompt)}, {noise}{settings}).images[0]",
        ]
    )


def _applied(method: Method | None, schedule: Schedule, forecast: float) -> list[str]:
    """The arguments of ``tomadiff.apply``."""
    steps = [f"forecast={forecast:g}"] if forecast else []
    if method is None:
        return ["pipe", *steps]
    own = [] if schedule == method.schedule else [f"schedule={written(schedule)}"]
    return ["pipe", written(method), *own, *steps, "guard=False"]


def written(value: object) -> str:
    """A setting as an expression; of dataclasses, only what differs from their defaults, and always the ratio."""
    if isinstance(value, str):
        return _quoted(value)
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    shown = [field for field in fields(value) if field.name == "ratio" or getattr(value, field.name) != field.default]
    inside = ", ".join(f"{field.name}={written(getattr(value, field.name))}" for field in shown)
    return f"tomadiff.{type(value).__name__}({inside})"


def _quoted(text: str) -> str:
    """In double quotes, as formatters write it; JSON's escapes are Python's."""
    return json.dumps(text, ensure_ascii=False)
