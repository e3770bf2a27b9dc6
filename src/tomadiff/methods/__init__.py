"""How tokens merge: one file and one frozen dataclass per method."""

from tomadiff.methods.base import Method
from tomadiff.methods.bound import Bound
from tomadiff.methods.todo import ToDo
from tomadiff.methods.tofu import ToFu
from tomadiff.methods.toma import ToMA
from tomadiff.methods.tomesd import ToMeSD

__all__ = ["Bound", "Method", "ToDo", "ToFu", "ToMA", "ToMeSD"]
