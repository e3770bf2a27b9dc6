"""What somebody is told who guesses a name: the right call, or the nearest name there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tomadiff.errors import NameGuessError, did_you_mean


def instead_of(name: str, calls: Mapping[str, str], known: Collection[str]) -> str:
    """The call that ``name`` stands for, else the nearest of ``known``: the end of a sentence."""
    if name in calls:
        return f"; call {calls[name]}."
    return f"{did_you_mean(name, known)}; there are {', '.join(sorted(known))}."


class Guided:
    """Base of objects whose public attributes are read only, and whose unknown ones say what to call.

    Attributes:
        calls: what to call instead of reading a name that is not there.
        changes: how each setting is changed, by name.
    """

    calls: ClassVar[Mapping[str, str]] = {}
    changes: ClassVar[Mapping[str, str]] = {}

    def _keep(self, **values: Any) -> None:
        """Set attributes that users only read."""
        vars(self).update(values)

    if not TYPE_CHECKING:  # a type checker knows better which names there are

        def __getattr__(self, name: str) -> Any:
            known = [one for one in dir(type(self)) if not one.startswith("_")]
            told = "." if name.startswith("_") else instead_of(name, type(self).calls, known)
            raise NameGuessError(f"{type(self).__name__} has no {name!r}{told}")

        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                object.__setattr__(self, name, value)
                return
            call = type(self).changes.get(name, type(self).changes.get("", "")).format(name=name, value=value)
            raise NameGuessError(f"{type(self).__name__}.{name} = {value!r} would change nothing; call {call}.")
