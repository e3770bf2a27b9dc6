"""What a visitor requests, and what is wrong with it, field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tomadiff.errors import SettingError
from tomadiff.evaluation.runs.variants import RECOMMENDED, Variant
from tomadiff.steps.forecast import Forecast

FIELDS = ("prompt", "method", "ratio", "forecast", "size", "steps", "seed")
"""Fields that can hold a wrong value; width and height are one."""
LONGEST_PROMPT, MOST_STEPS, MOST_SEED = 1000, 200, 2**32 - 1
SMALLEST = 64  # pixels


@dataclass(frozen=True)
class Canvas:
    """Which sizes a model generates: sides of ``SMALLEST`` to ``most`` pixels that ``step`` divides."""

    width: int
    height: int
    step: int = 8

    @property
    def most(self) -> int:
        """Twice the longer side it was made for; beyond that, models repeat themselves."""
        return 2 * max(self.width, self.height)

    def wrong(self, width: object, height: object) -> str | None:
        """Why this size cannot be generated; ``None`` if it can."""
        if self._fits(width) and self._fits(height):
            return None
        given = f"{_shown(width)} × {_shown(height)}"
        return f"{given} is not possible; give sides from {SMALLEST} to {self.most} pixels that {self.step} divides."

    def _fits(self, side: object) -> bool:
        whole = _whole(side)
        return whole is not None and SMALLEST <= whole <= self.most and whole % self.step == 0


@dataclass(frozen=True)
class ImageSettings:
    """All that an unmerged image depends on."""

    model: str
    prompt: str
    seed: int
    steps: int
    width: int
    height: int


@dataclass(frozen=True)
class ImageRequest:
    """An image to generate, and the method to generate it with as well."""

    settings: ImageSettings
    variant: Variant


def read(given: Mapping[str, Any], canvas: Canvas) -> ImageRequest | dict[str, str]:
    """The request, or what is wrong by :data:`FIELDS`.

    Args:
        given: model, prompt, method, ratio, forecast, width, height, steps and seed, as a browser sends them.
        canvas: of the model.
    """
    wrong = {name: problem for name, problem in _problems(given, canvas).items() if problem}
    if wrong:
        return wrong
    sizes = {name: int(given[name]) for name in ("seed", "steps", "width", "height")}
    settings = ImageSettings(given["model"], given["prompt"].strip(), **sizes)
    return ImageRequest(settings, _variant(given))


def has_settings(method: str) -> bool:
    """Whether ratio and forecast are a visitor's to choose; what is recommended follows from the steps alone."""
    return method != RECOMMENDED


def _variant(given: Mapping[str, Any]) -> Variant:
    chosen = Variant.named(given["method"], given["ratio"])
    return chosen.forecasting(float(given.get("forecast", 0.0))) if has_settings(given["method"]) else chosen


def _problems(given: Mapping[str, Any], canvas: Canvas) -> dict[str, str | None]:
    method = _wrong_setting(given["method"], 0.5)
    return {
        "prompt": _wrong_prompt(given["prompt"]),
        "method": method,
        **(_wrong_settings(given) if not method and has_settings(given["method"]) else {}),
        "size": canvas.wrong(given["width"], given["height"]),
        "steps": _wrong_number(given["steps"], 1, MOST_STEPS),
        "seed": _wrong_number(given["seed"], 0, MOST_SEED),
    }


def _wrong_prompt(text: object) -> str | None:
    words = text.strip() if isinstance(text, str) else ""
    if not words:
        return "The prompt is empty; say what to generate."
    if len(words) > LONGEST_PROMPT:
        return f"The prompt has {len(words)} characters; {LONGEST_PROMPT} are possible."
    return None


def _wrong_settings(given: Mapping[str, Any]) -> dict[str, str | None]:
    """Some methods allow fewer ratios than others."""
    ratio = _wrong_setting(given["method"], given["ratio"])
    return {"ratio": ratio, "forecast": _wrong_tolerance(given.get("forecast", 0.0))}


def _wrong_setting(method: str, ratio: Any) -> str | None:
    if isinstance(ratio, int | float) and ratio > 1:
        return f"{ratio:g} is not possible: the ratio is a share, so 0.5 is half."
    try:
        Variant.named(method, ratio)
    except SettingError as problem:
        return str(problem)
    return None


def _wrong_tolerance(tolerance: Any) -> str | None:
    try:
        Forecast(tolerance)
    except SettingError as problem:
        return str(problem)
    return None


def _wrong_number(value: object, least: int, most: int) -> str | None:
    whole = _whole(value)
    if whole is not None and least <= whole <= most:
        return None
    return f"{_shown(value)} is not possible; give a whole number from {least} to {most}."


def _whole(value: object) -> int | None:
    """Browsers send 20 as 20 or 20.0, and nothing as ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else None


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
