"""Where tokens merge: one small file per model family, facts as data. ``register`` takes families from outside."""

from tomadiff.families.base import Block, Call, Family, Op, Scene, Stack
from tomadiff.families.registry import family_of, register, supported

__all__ = ["Block", "Call", "Family", "Op", "Scene", "Stack", "family_of", "register", "supported"]
