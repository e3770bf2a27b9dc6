"""The scale of classifier-free guidance that a pipeline works with, as far as it says."""

from __future__ import annotations

from types import FrameType
from typing import Any

_TRUE = ("do_true_cfg", "true_cfg_scale")  # variables of pipelines whose guidance_scale is an input of the model


def guidance_of(pipeline: Any, frame: FrameType) -> float:
    """The scale of the pipeline whose code runs in ``frame``; 1 if it does not guide, or does not say.

    A scale that the model is given as an input (FLUX.1-dev) does not count: its output is guided already. Guiders of
    modular pipelines say for themselves whether they are on.
    """
    asked, scale = (frame.f_locals.get(name) for name in _TRUE)
    if not asked:
        guider = getattr(pipeline, "guider", None)
        asked = getattr(pipeline, "do_classifier_free_guidance", False) or getattr(guider, "num_conditions", 1) > 1
        scale = getattr(pipeline, "guidance_scale", None) if guider is None else getattr(guider, "guidance_scale", None)
    return float(scale) if asked and isinstance(scale, int | float) else 1.0
