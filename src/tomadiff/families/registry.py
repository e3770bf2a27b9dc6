"""The known families, and the models that cannot profit."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from torch import nn

from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.families.base import Family


def _collected() -> dict[str, Family]:
    """``FAMILY`` of every file of this folder that has one."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    others = {"base", "registry"}
    modules = (import_module(f"tomadiff.families.{name}") for name in names if name not in others)
    return {module.FAMILY.name: module.FAMILY for module in modules}


_FAMILIES = _collected()

CANNOT_PROFIT = {
    "SanaTransformer2DModel": "its attention is linear in the number of tokens, and its feed-forward convolves over "
    "the grid, which merged tokens do not have",
    "SanaVideoTransformer3DModel": "its attention is linear in the number of tokens, and its feed-forward convolves "
    "over the grid, which merged tokens do not have",
    "SanaWMTransformer3DModel": "three of four blocks have attention that is linear in the number of tokens, the "
    "others need a camera's ray for every place of the grid, and all feed-forwards convolve over the grid, which "
    "merged tokens do not have",
    "UNet2DModel": "it has no transformer blocks",
    "StableCascadeUNet": "it works on a few hundred tokens, where merging costs more than it saves",
}
"""Models that are known, and not worth merging or not able to: better said than discovered."""


NEVER_MERGED = "Text, audio and reference images are never merged: they are few, and each of their tokens counts."
"""What holds for every family, and why."""


def register(family: Family, *, replace: bool = False) -> None:
    """Make a family known, so that :func:`tomadiff.apply` finds it; see ``docs/adding/a_model.md``."""
    if family.name in _FAMILIES and not replace:
        raise SettingError(f"A family named {family.name!r} exists already; give another name, or replace=True.")
    _FAMILIES[family.name] = family


def unregister(name: str) -> None:
    """Forget a family that :func:`register` added."""
    _FAMILIES.pop(name, None)


def supported() -> tuple[Family, ...]:
    """Every family that tokens can merge in."""
    return tuple(_FAMILIES.values())


def find_family(model: nn.Module) -> Family | None:
    """The family of ``model``, by its class or a class it derives from."""
    names = [known.__name__ for known in type(model).__mro__]
    return next((family for name in names for family in _FAMILIES.values() if name in family.models), None)


def family_of(model: nn.Module) -> Family:
    """The family of ``model``, or an error that says why there is none."""
    family = find_family(model)
    if family is not None:
        return family
    name = type(model).__name__
    if name in CANNOT_PROFIT:
        raise UnsupportedModelError(f"{name} cannot profit from merging: {CANNOT_PROFIT[name]}.")
    raise UnsupportedModelError(f"{name} is not a model that tomadiff knows. {describe_supported()}")


def describe_supported() -> str:
    """One sentence that lists what is supported."""
    known = "; ".join(f"{family.title} ({', '.join(family.models)})" for family in _FAMILIES.values())
    return f"Supported: {known}. Another model takes one small file: see docs/adding/a_model.md."
