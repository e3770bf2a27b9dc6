"""What a measured run says: a row for each method and ratio, a column for each metric, and what could not be had.

``summary.json`` in a run's folder is a :class:`Results` as :meth:`Results.as_json` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tomadiff.evaluation.metrics.distances import METRICS, metric
from tomadiff.evaluation.metrics.statistics import Interval
from tomadiff.evaluation.runs.record import RunError
from tomadiff.utils.reading import (
    MEASURED,
    NAME,
    NUMBER,
    OBJECT,
    OBJECTS,
    RATIO,
    TEXT,
    TEXTS,
    WHOLE,
    inside,
    parse_json,
    read_text,
    require_record,
)
from tomadiff.utils.writing import write_whole


@dataclass(frozen=True)
class Row:
    """One method at one ratio.

    Attributes:
        method: name in the catalogue, or "full".
        ratio: share of tokens removed.
        count: of images.
        seconds: per image, the median.
        flops: of the denoiser per image, the mean; 0 where they were not counted.
        metrics: by name; see :data:`~tomadiff.evaluation.metrics.distances.METRICS`.
    """

    method: str
    ratio: float
    count: int
    seconds: float
    flops: float
    metrics: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A measured run.

    Attributes:
        reference: the method that the others are compared with.
        rows: the reference first, then by method and ratio.
        missing: metrics that could not be had, and why.
        resampled: what the intervals resample: "prompts" or "samples".
        confidence: of the intervals.
    """

    reference: str
    rows: tuple[Row, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    resampled: str = "samples"
    confidence: float = 0.95

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metrics that some row has, the described ones first."""
        present = dict.fromkeys(name for row in self.rows for name in row.metrics)
        known = [*METRICS, *(f"{name}_reference" for name in METRICS)]
        return (*(name for name in known if name in present), *(name for name in present if name not in known))

    def row(self, method: str, ratio: float) -> Row:
        """The row of a method at a ratio."""
        found = [row for row in self.rows if (row.method, row.ratio) == (method, ratio)]
        if not found:
            raise RunError(f"{method} at ratio {ratio:g} was not measured; there are {self._names()}.")
        return found[0]

    def _names(self) -> str:
        return ", ".join(f"{row.method} {row.ratio:g}" for row in self.rows)

    def as_json(self) -> str:
        """Text that :meth:`from_json` reads, and any other reader: no NaN, no infinity."""
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: object = "summary.json") -> Results:
        """What :meth:`as_json` wrote; ``where`` the text is from is told if it is something else."""
        held = require_record(
            parse_json(text, where, RunError),
            {"reference": TEXT, "rows": OBJECTS},
            where,
            RunError,
            missing=TEXTS,
            resampled=TEXT,
            confidence=RATIO,
        )
        return cls(**{**held, "rows": tuple(_row(row, where) for row in held["rows"])})

    def save(self, folder: Path) -> Path:
        """Write ``summary.json``, whole or not at all."""
        path = folder / "summary.json"
        write_whole(path, self.as_json())
        return path

    @classmethod
    def load(cls, folder: Path) -> Results:
        """The ``summary.json`` of a run's folder."""
        path = inside(folder, "summary.json", error=RunError)
        if not path.is_file():
            raise RunError(f"{folder} has no summary.json: it was not measured yet.")
        return cls.from_json(read_text(path, RunError), path)

    def markdown(self) -> str:
        """A table for people: values, intervals in brackets, and what is missing below it."""
        names = self.columns
        arrows = {"higher": "↑", "lower": "↓"}
        titles = [f"{metric(name).title} {arrows[metric(name).better]}" for name in names]
        lines = [_line(["method", "ratio", "images", "s", *titles]), _line(["---"] * (4 + len(names)))]
        lines += [_line([row.method, f"{row.ratio:g}", str(row.count), f"{row.seconds:.2f}", *_cells(row, names)])
                  for row in self.rows]  # fmt: skip
        notes = [f"- {name}: not measured. {reason}" for name, reason in self.missing.items()]
        return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


_NEEDED = {"method": NAME, "ratio": RATIO, "count": WHOLE, "seconds": MEASURED, "flops": MEASURED, "metrics": OBJECT}
_INTERVAL = {"value": NUMBER, "low": NUMBER, "high": NUMBER, "count": WHOLE}


def _row(held: dict[str, Any], where: object) -> Row:
    require_record(held, _NEEDED, where, RunError)
    metrics = {
        name: Interval(**require_record(interval, _INTERVAL, f"{where}, {held['method']}, {name}", RunError))
        for name, interval in held["metrics"].items()
    }
    return Row(**{**held, "metrics": metrics})


def _cells(row: Row, names: tuple[str, ...]) -> list[str]:
    return [_cell(row.metrics[name], metric(name).digits) if name in row.metrics else "–" for name in names]


def _cell(interval: Interval, digits: int) -> str:
    digits = interval.digits(digits)
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
