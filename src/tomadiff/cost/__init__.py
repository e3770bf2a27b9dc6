"""What calls cost: counted operator by operator, and predicted for a machine by a roofline with launch cost."""

from tomadiff.cost.hardware import PARTS, Hardware
from tomadiff.cost.machines import GPUS
from tomadiff.cost.op import KINDS, Kind, Op
from tomadiff.cost.trace import Cost, Trace, cost_of, flop_counter, trace

__all__ = [
    "GPUS",
    "KINDS",
    "PARTS",
    "Cost",
    "Hardware",
    "Kind",
    "Op",
    "Trace",
    "cost_of",
    "flop_counter",
    "trace",
]
