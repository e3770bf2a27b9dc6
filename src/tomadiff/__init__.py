"""tomadiff: diffusion models generate the same image sooner, by merging tokens and forecasting steps."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tomadiff.errors import TomaError
    from tomadiff.families.registry import register, supported
    from tomadiff.merging.grid import Grid, Stripes, Tiles, Whole
    from tomadiff.merging.plan import MergePlan
    from tomadiff.merging.select import facility_location
    from tomadiff.methods import Bound, Method, ToDo, ToFu, ToMA, ToMeSD
    from tomadiff.patch import Patch, apply, remove
    from tomadiff.steps.clock import Clock
    from tomadiff.steps.forecast import Forecast
    from tomadiff.steps.schedule import Schedule

__version__ = "0.1.0"

_HOMES = {  # loaded when they are asked for, so that ``import tomadiff`` takes no time
    "tomadiff.errors": ("TomaError",),
    "tomadiff.families.registry": ("register", "supported"),
    "tomadiff.merging.grid": ("Grid", "Stripes", "Tiles", "Whole"),
    "tomadiff.merging.plan": ("MergePlan",),
    "tomadiff.merging.select": ("facility_location",),
    "tomadiff.methods": ("Bound", "Method", "ToDo", "ToFu", "ToMA", "ToMeSD"),
    "tomadiff.patch": ("Patch", "apply", "remove"),
    "tomadiff.steps.clock": ("Clock",),
    "tomadiff.steps.forecast": ("Forecast",),
    "tomadiff.steps.schedule": ("Schedule",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Bound",
    "Clock",
    "Forecast",
    "Grid",
    "MergePlan",
    "Method",
    "Patch",
    "Schedule",
    "Stripes",
    "Tiles",
    "ToDo",
    "ToFu",
    "ToMA",
    "ToMeSD",
    "TomaError",
    "Whole",
    "__version__",
    "apply",
    "facility_location",
    "register",
    "remove",
    "supported",
]


_PARTS = ("embedded", "presets")  # modules that users name; loaded when they are asked for
_INSTEAD = {
    "apply_patch": "tomadiff.apply(pipe, ratio=0.5)",
    "remove_patch": "tomadiff.remove(pipe)",
    "enable": "tomadiff.apply(pipe, ratio=0.5)",
    "disable": "tomadiff.remove(pipe)",
    "unpatch": "tomadiff.remove(pipe)",
    "load": 'tomadiff.embedded.load("emoji-sdxl"), or from_pretrained of diffusers',
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name.startswith("_"):  # Python and its tools ask for many
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tomadiff.errors import NameGuessError
    from tomadiff.utils.guesses import instead_of

    raise NameGuessError(f"tomadiff has no {name!r}{instead_of(name, _INSTEAD, __all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
