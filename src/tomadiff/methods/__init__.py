"""How tokens merge: one file and one frozen dataclass per method."""

from tomadiff.methods.base import Method
from tomadiff.methods.toma import ToMA

__all__ = ["Method", "ToMA"]
