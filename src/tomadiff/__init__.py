"""tomadiff: diffusion models draw the same picture sooner, by merging near-equal image tokens."""

from tomadiff.adapters import register, supported
from tomadiff.clock import Clock
from tomadiff.errors import TomaError
from tomadiff.forecast import Forecast
from tomadiff.grid import Grid, Stripes, Tiles, Whole
from tomadiff.methods import Bound, Method, ToDo, ToFu, ToMA, ToMeSD
from tomadiff.patch import Patch, apply, remove
from tomadiff.plan import MergePlan
from tomadiff.schedule import Schedule
from tomadiff.select import facility_location

__version__ = "0.1.0"

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
