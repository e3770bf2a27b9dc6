"""Every setting is checked here, by its annotation: the type, the range, and what to do about a wrong value.

A class of settings derives from :class:`Settings`, a function that takes some is decorated with :func:`checked`.
NumPy's scalars count as the numbers they are. Lists become tuples, and mappings tuples of pairs: settings stay
hashable, and nobody can change them from outside.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from tomadiff.errors import SettingError

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 2**63 - 1
"""No whole number may be larger: tensors hold none that is."""


@dataclass(frozen=True)
class Rule:
    """Which values of a type are possible; written into an annotation as ``Annotated[type, Rule(…)]``.

    Attributes:
        advice: what to do about a wrong value, as the end of a sentence.
        holds: whether a value of the right type is possible.
    """

    advice: str
    holds: Callable[[Any], bool] = lambda _: True


def whole(least: int, most: int = LARGEST) -> Rule:
    """Whole numbers from ``least`` to ``most``."""
    limit = f"of at least {least}, below 2**63" if most == LARGEST else f"from {least} to {most}"
    return Rule(f"give a whole number {limit}", lambda value: least <= value <= most)


def named(known: Collection[str]) -> Rule:
    """One of ``known``."""
    return Rule(f"choose one of {', '.join(map(repr, known))}", lambda value: value in known)


Count = Annotated[int, whole(1)]
Index = Annotated[int, whole(0)]
Seed = Annotated[int, whole(0, 2**64 - 1)]  # all that torch takes
Ratio = Annotated[
    float,
    Rule(
        "it is the share of tokens removed, from 0 up to (not including) 1: 0.5 keeps half of them",
        lambda value: 0 <= value < 1,
    ),
]


class Settings:
    """Base of dataclasses of settings; one that checks more calls ``super().__post_init__()`` first."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        hints = _hints(kind)
        for field in fields(self):  # type: ignore[arg-type]  # those that derive from this are dataclasses
            if field.name in hints:
                kept = check(field.name, getattr(self, field.name), hints[field.name])
                object.__setattr__(self, field.name, kept)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of ``function`` by their annotations before it runs."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given, hints = signature.bind(*args, **kwargs), _hints(function)
        for name, value in given.arguments.items():
            if name in hints:
                given.arguments[name] = check(name, value, hints[name])
        return function(*given.args, **given.kwargs)

    return call


@cache
def _hints(owner: Any) -> dict[str, Any]:
    """Annotations as types; a class whose own name things that cannot be looked up (it is local) is left unchecked."""
    found: dict[str, Any] = {}
    for part in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        with suppress(NameError):
            found.update(inspect.get_annotations(part, eval_str=True))
    return found


def check(name: str, value: Any, hint: Any) -> Any:
    """``value`` as it is kept; one that ``hint`` does not allow raises a :class:`SettingError` that says what to do."""
    value = _plain(value)
    if not _is_kind(value, hint):
        raise _wrong(name, value, hint)
    if get_origin(hint) in (Union, UnionType):
        return check(name, value, next(choice for choice in get_args(hint) if _is_kind(value, choice)))
    if get_origin(hint) is not Annotated:
        return _contents(name, value, hint)
    base, rule = get_args(hint)
    kept = check(name, value, base)
    if not rule.holds(kept):
        raise _wrong(name, value, hint)
    return kept


def _is_kind(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of the type, whatever it contains."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_kind(value, inner[0])
    if origin in (Union, UnionType):
        return any(_is_kind(value, choice) for choice in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, tuple | list | range) and (inner[-1] is ... or len(inner) == len(value))
    if hint in (int, float):
        return _is_number(value, hint)
    if hint is Any or origin is Callable:
        return hint is Any or callable(value)
    return isinstance(value, origin or hint) and not isinstance(value, type)  # Tiles(4) is a kind of Regions, Tiles not


def _is_number(value: Any, kind: type[int] | type[float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | kind):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _contents(name: str, value: Any, hint: Any) -> Any:
    """A container with everything in it checked; anything else as it is."""
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(check(f"{name}[{place}]", *pair) for place, pair in enumerate(zip(value, kinds, strict=True)))
    if get_origin(hint) is Mapping:
        keys = [check(f"{name}'s key", key, inner[0]) for key in value]
        return tuple((key, check(f"{name}[{key!r}]", value[key], inner[1])) for key in keys)
    return value


def _plain(value: Any) -> Any:
    """A scalar of NumPy as Python's own, which is known without importing it."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _wrong(name: str, value: Any, hint: Any) -> SettingError:
    return SettingError(f"{name}={_shown(value)} is not possible; {_advice(hint)}.")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, or an object that is broken
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:99]}…"


def _advice(hint: Any) -> str:
    """What to do; of alternatives, the one that has a rule knows best."""
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    rules = [get_args(choice)[1] for choice in choices if get_origin(choice) is Annotated]
    if rules:
        return str(rules[0].advice)
    return f"{'choose' if get_origin(hint) is Literal else 'give'} {' or '.join(map(_words, choices))}"


def _words(hint: Any) -> str:
    """A type in words."""
    simple = {bool: "True or False", int: "a whole number", float: "a finite number", str: "text", NoneType: "None"}
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) in (tuple, Mapping):
        return "a tuple" if get_origin(hint) is tuple else "a mapping"
    return "a function" if get_origin(hint) is Callable else simple.get(hint) or f"a {getattr(hint, '__name__', hint)}"
