"""Settings with a name and a reason: a method, its schedule and a forecast as a small JSON file to ship and share.

``apply(pipe, preset="sdxl")`` takes one that comes with the package, ``apply(pipe, preset="mine.json")`` one of your
own, as :meth:`Preset.save` or ``tomadiff tune`` writes it. Every setting is written down, so that a preset means the
same when defaults change; one that a file leaves out has its default.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from tomadiff.errors import SettingError, TomaError
from tomadiff.merging.grid import Stripes, Tiles, Whole
from tomadiff.methods import Bound, Method, ToDo, ToFu, ToMA, ToMeSD
from tomadiff.steps.forecast import Forecast
from tomadiff.steps.recommend import Recommended
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.reading import OBJECT, TEXT, FileError, Kind, read_json, require_record
from tomadiff.utils.settings import Settings
from tomadiff.utils.writing import write_whole

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Bound, Forecast, Recommended, Schedule, Stripes, Tiles, ToDo, ToFu, ToMA, ToMeSD, Whole)
}
_FOLDER = Path(__file__).parent
_SETTINGS = Kind("an object, or null", lambda value: value is None or OBJECT.fits(value))


@dataclass(frozen=True)
class Preset(Settings):
    """A method and its schedule, and why these.

    Attributes:
        method: how to merge.
        schedule: when.
        made_for: the models it was made for, in words.
        why: what it rests on: measured where and how, or reasoned.
        forecast: which denoising steps are forecast, if any.
    """

    method: Method
    schedule: Schedule
    made_for: str = ""
    why: str = ""
    forecast: Forecast | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "schedule", self.schedule.completed_by(self.method.schedule))

    @classmethod
    def of(cls, source: str | Path | Preset) -> Preset:
        """A preset as it is, or loaded."""
        return source if isinstance(source, Preset) else cls.load(source)

    @classmethod
    def load(cls, source: str | Path) -> Preset:
        """By the name of one that ships, or by the path of a file."""
        path = _FOLDER / f"{source}.json" if str(source) in available() else Path(source)
        if not os.path.isfile(path):  # Path.is_file raises for some names
            known = ", ".join(available()) or "none"
            raise SettingError(f"There is no preset {str(source)!r}: give the path of a JSON file, or one of {known}.")
        try:
            return cls._from(read_json(path), path)
        except FileError as problem:
            raise SettingError(f"{path} is not a preset: {problem}") from problem

    @classmethod
    def _from(cls, stored: Any, path: Path) -> Preset:
        if not isinstance(stored, dict) or "method" not in stored:
            raise SettingError(f'{path} is not a preset: it needs "method", as Preset.save writes it.')
        require_record(
            stored, {"method": OBJECT}, path, schedule=_SETTINGS, forecast=_SETTINGS, made_for=TEXT, why=TEXT
        )
        try:
            method, schedule, forecast = (_made(stored.get(name)) for name in ("method", "schedule", "forecast"))
        except (TomaError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as problem:
            raise SettingError(f"{path} is not a preset: {problem}") from problem
        if not isinstance(method, Method) or not isinstance(schedule, Schedule | None):
            raise SettingError(f'{path} is not a preset: "method" must be a method and "schedule" a Schedule.')
        if not isinstance(forecast, Forecast | None):
            raise SettingError(f'{path} is not a preset: "forecast" must be a Forecast.')
        notes = {name: stored.get(name, "") for name in ("made_for", "why")}
        return cls(method, schedule or method.schedule, forecast=forecast, **notes)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        write_whole(path, self.as_json() + "\n")

    def as_json(self) -> str:
        """As it is stored."""
        stored: dict[str, Any] = {
            "made_for": self.made_for,
            "why": self.why,
            "method": _plain(self.method),
            "schedule": _plain(self.schedule),
        }
        if self.forecast is not None:
            stored["forecast"] = _plain(self.forecast)
        return json.dumps(stored, indent=2, ensure_ascii=False)


def available() -> tuple[str, ...]:
    """Names of the presets that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def _plain(value: Any) -> Any:
    """As JSON knows it: settings by kind and name; tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        settings = {one.name: _plain(getattr(value, one.name)) for one in fields(value) if one.init}
        return {"kind": type(value).__name__, **settings}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if callable(value):
        raise SettingError(f"{value!r} is a function, which a preset cannot hold; name a selector instead.")
    return value


def _made(value: Any) -> Any:
    """The other way round; only kinds of settings that are known here are ever made."""
    if isinstance(value, list):
        return tuple(_made(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SettingError(f"kind={kind!r} is not known; choose one of {', '.join(_KINDS)}.")
    return _KINDS[kind](**{name: _made(item) for name, item in value.items() if name != "kind"})
