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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, *globals()]
