"""Where tokens merge in ComfyUI's models: facts as data, in the words of :mod:`tomadiff.families`."""

from __future__ import annotations

from torch import nn

from tomadiff.errors import UnsupportedModelError
from tomadiff.families import Family

from . import cosmos, flux, hidream, hunyuan_video, ltx, lumina, qwen_image, sd3, unet, wan

FAMILIES = (
    unet.FAMILY,
    sd3.FAMILY,
    flux.FAMILY,
    qwen_image.FAMILY,
    lumina.FAMILY,
    wan.FAMILY,
    hunyuan_video.FAMILY,
    ltx.FAMILY,
    cosmos.FAMILY,
    hidream.FAMILY,
)

_UNWRAPPED = ("OpenAISignatureMMDITWrapper",)  # as of ComfyUI 0.3.75


def is_unwrapped(model: nn.Module) -> bool:
    """Whether ComfyUI lets nodes go around what holds a model alone, and not around its own calls."""
    return type(model).__name__ in _UNWRAPPED


def find_family(model: nn.Module) -> Family | None:
    """The family of one of ComfyUI's diffusion models, by its class or a class it derives from."""
    names = [known.__name__ for known in type(model).__mro__]
    return next((family for name in names for family in FAMILIES if name in family.models), None)


def family_of(model: nn.Module) -> Family:
    """The same, or an error that says what to do."""
    family = find_family(model)
    if family is None:
        known = "; ".join(family.title for family in FAMILIES)
        raise UnsupportedModelError(
            f"Tokens cannot merge in {type(model).__name__}. Set the ratio to 0: forecasts work on every model. "
            f"Tokens merge in: {known}."
        )
    return family
