"""Errors of tomadiff. Every message says what was given, what is possible, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches


class TomaError(Exception):
    """Base of every error that tomadiff raises on purpose."""


class SettingError(TomaError, ValueError):
    """A setting has a value that cannot work; raised when the setting is made, before any work."""


class ShapeError(TomaError, ValueError):
    """A tensor does not fit the grid or the plan it is used with."""


class UnsupportedModelError(TomaError, TypeError):
    """A model or pipeline that tomadiff cannot merge tokens in; the message lists those it can."""


class PatchError(TomaError, RuntimeError):
    """A patch was used in a way that its state does not allow."""


class NameGuessError(TomaError, AttributeError):
    """There is no such name; the message says which there is."""


def did_you_mean(value: object, known: Iterable[object]) -> str:
    """`` (did you mean 'toma'?)`` for the nearest of ``known``, whatever the case; empty if none is near."""
    names = {str(one).lower(): one for one in known}
    near = get_close_matches(str(value).lower(), names, 1, cutoff=0.7)
    return f" (did you mean {names[near[0]]!r}?)" if near else ""


def require_choice(name: str, value: object, allowed: Collection[object]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        near, all_of_them = did_you_mean(value, allowed), ", ".join(map(repr, allowed))
        raise SettingError(f"{name}={value!r} is not known{near}; choose one of {all_of_them}.")


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name}={value!r} is not possible; give a whole number of at least {least}.")
