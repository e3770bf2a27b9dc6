"""Where tokens merge: one small file per model family, facts as data. ``register`` takes families from outside."""

from tomadiff.families.base import Block, Family, Mask, ModelCall, Op, Rotary, Rows, Stack, TokenLayout
from tomadiff.families.registry import family_of, register, supported

__all__ = [
    "Block",
    "Family",
    "Mask",
    "ModelCall",
    "Op",
    "Rotary",
    "Rows",
    "Stack",
    "TokenLayout",
    "family_of",
    "register",
    "supported",
]
