"""Which models of a pipeline are patched."""

from __future__ import annotations

from typing import Any

from torch import nn

from tomadiff.engine.hooks import unwrap
from tomadiff.errors import UnsupportedModelError
from tomadiff.families.base import Family
from tomadiff.families.registry import describe_supported, find_family, supported
from tomadiff.methods.base import Method
from tomadiff.steps.recommend import Capped, Kind

_DENOISERS = ("unet", "transformer", "transformer_2")  # components of a pipeline that denoise


def models_to_merge(target: Any) -> list[tuple[str, nn.Module]]:
    """The denoisers that tokens merge in: those of a known family, if any is."""
    models = denoisers_of(target)
    return [(name, model) for name, model in models if find_family(unwrap(model)) is not None] or models


def denoisers_of(target: Any) -> list[tuple[str, nn.Module]]:
    """The denoisers of a pipeline by component name; a bare model alone."""
    if isinstance(target, nn.Module):
        return [("model", target)]
    found = [(name, getattr(target, name, None)) for name in _DENOISERS]
    models = [(name, model) for name, model in found if isinstance(model, nn.Module)]
    if not models:
        raise UnsupportedModelError(
            f"{type(target).__name__} is neither a model nor a pipeline with a UNet or transformer. "
            f"{describe_supported()}"
        )
    return models


def capped_by(target: Any, budget: Any) -> Capped:
    """The forecast that keeps within a :class:`tomadiff.cost.budget.Budget`."""
    models = [unwrap(model) for _, model in denoisers_of(target)]
    merges = any(find_family(model) is not None for model in models)
    kind: Kind = "unet" if "UNet" in type(models[0]).__name__ else "transformer"
    return Capped(cap=budget.share, kind=kind, merges=merges, asked=str(budget))


def controlnets_of(target: Any) -> list[nn.Module]:
    """The ControlNet of a pipeline, if it has one; several come as one model."""
    control = None if isinstance(target, nn.Module) else getattr(target, "controlnet", None)
    return [control] if isinstance(control, nn.Module) else []


def require_match(method: Method, family: Family) -> None:
    """Raise if ``method`` does not work on ``family``."""
    if method.families is not None and family.name not in method.families:
        titles = ", ".join(known.title for known in supported() if known.name in method.families)
        raise UnsupportedModelError(f"{type(method).__name__} does not work on {family.title}; it works on {titles}.")


def take_off(model: nn.Module, mark: str, replaced: bool = False) -> None:
    """Take off whatever a model holds under ``mark``, and tell it whether something else comes in its place."""
    old = unwrap(model).__dict__.get(mark)
    if old is not None:
        old.replaced = replaced
        old.take_off()
