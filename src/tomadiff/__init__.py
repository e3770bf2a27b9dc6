"""tomadiff: diffusion models generate the same image sooner, by merging tokens and forecasting steps."""

from tomadiff.errors import TomaError
from tomadiff.families import register, supported
from tomadiff.merging.grid import Grid, Stripes, Tiles, Whole
from tomadiff.merging.plan import MergePlan
from tomadiff.merging.select import facility_location
from tomadiff.methods import Bound, Method, ToDo, ToFu, ToMA, ToMeSD
from tomadiff.patch import Patch, apply, remove
from tomadiff.steps.clock import Clock
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.schedule import Schedule

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
