"""Calibrations: constants of one's own machine in a file that ``tomadiff calibrate`` writes.

A calibration changes what merges, and so the image. It is used only where the environment names its file in
:data:`VARIABLE`, never because it is there.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from math import inf, isfinite
from pathlib import Path

import torch

from tomadiff.cost.hardware import Hardware
from tomadiff.cost.machines import device_name
from tomadiff.cost.op import KINDS
from tomadiff.errors import SettingError
from tomadiff.kernels import fused
from tomadiff.utils.reading import NUMBER, OBJECT, OBJECTS, TEXT, WHOLE, FileError, Kind, read_json, require_record

VARIABLE = "TOMADIFF_CALIBRATION"
"""The environment variable that names the file."""

_FORMAT = "tomadiff calibration 1"
_VERSION = Kind(repr(_FORMAT), lambda value: value == _FORMAT)
_THREADS = Kind("a whole number of at least 1", lambda value: WHOLE.fits(value) and value > 0)
_RATE = Kind("a number above 0", lambda value: NUMBER.fits(value) and 0 < value < 1e30)
_POSSIBLE = Kind("a number above 0, or null", lambda value: value is None or _RATE.fits(value))
_NEEDED = {
    **dict.fromkeys(("device", "dtype", "torch_version"), TEXT),
    "threads": _THREADS,
    **dict.fromkeys(("matmul", "bandwidth", "launch"), _RATE),
}
_SHARES: dict[str, Kind] = dict.fromkeys(KINDS[1:], _RATE)
_logger = logging.getLogger("tomadiff")


@dataclass(frozen=True)
class Entry:
    """The constants of one device, dtype, number of threads and torch; see :class:`~tomadiff.cost.Hardware`."""

    device: str
    dtype: str
    threads: int
    torch_version: str
    matmul: float
    bandwidth: float
    launch: float
    fresh: float | None = None
    weights: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What it is valid for."""
        return self.device, self.dtype, self.threads, self.torch_version

    @classmethod
    def of(cls, machine: Hardware, device: torch.device, dtype: torch.dtype) -> Entry:
        """Of a machine that was measured."""
        (rate,) = machine.matmul.values()
        fresh, weights = (value if isfinite(value) else None for value in (machine.fresh, machine.weights))
        place = _key(device, dtype, torch.get_num_threads())
        return cls(*place, rate, machine.bandwidth, machine.launch, fresh, weights, dict(machine.shares))

    def machine(self, device: torch.device, dtype: torch.dtype, path: Path) -> Hardware:
        """What it says, as a machine."""
        return Hardware(
            name=self.device,
            matmul={dtype: self.matmul},
            bandwidth=self.bandwidth,
            launch=self.launch,
            shares=self.shares,
            fresh=self.fresh or inf,
            weights=self.weights or inf,
            overlaps=device.type != "cpu",
            fuses=fused("auto", device, dtype, 1),
            source=f"calibration {path}",
        )


def require_calibration() -> None:
    """Raise if the calibration in force cannot be used."""
    given = os.environ.get(VARIABLE)
    if given:
        _read_once(Path(given).expanduser())


def calibrated(device: torch.device, dtype: torch.dtype, threads: int) -> Hardware | None:
    """The machine by the calibration in force; ``None`` without one, or if it does not know the device."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    path = Path(given).expanduser()
    entry = _read_once(path).get(_key(device, dtype, threads))
    return _unknown(path, *_key(device, dtype, threads)) if entry is None else entry.machine(device, dtype, path)


@cache
def _unknown(path: Path, device: str, dtype: str, threads: int, version: str) -> None:
    """Warns once."""
    _logger.warning(
        "The calibration %s has no entry for %s, %s, %d threads, torch %s: the constants of tomadiff are used. "
        "`tomadiff calibrate` adds one.",
        path, device, dtype, threads, version,
    )  # fmt: skip


def _key(device: torch.device, dtype: torch.dtype, threads: int) -> tuple[str, str, int, str]:
    """GPUs compute alike whatever threads the CPU has."""
    kind = str(dtype).removeprefix("torch.")
    return device_name(device), kind, threads if device.type == "cpu" else 1, torch.__version__


# ---------------------------------------------------------------------------------------------- files
def read(path: Path) -> dict[tuple[str, str, int, str], Entry]:
    """All entries of a file; raises one clear error unless it is a whole calibration."""
    try:
        held = require_record(read_json(path), {"format": _VERSION, "entries": OBJECTS}, path)
        entries = [_entry(one, f"{path}, entry {place}") for place, one in enumerate(held["entries"])]
    except FileError as problem:
        raise SettingError(
            f"{problem} So it is not a calibration that can be used: write one with `tomadiff calibrate --out FILE`, "
            f"and name it in {VARIABLE}, or unset that."
        ) from problem
    return {entry.key: entry for entry in entries}


def _entry(held: object, where: str) -> Entry:
    found = require_record(held, _NEEDED, where, fresh=_POSSIBLE, weights=_POSSIBLE, shares=OBJECT)
    return Entry(**{**found, "shares": require_record(found.get("shares", {}), {}, where, FileError, **_SHARES)})


_read_once = cache(read)  # one process decides by one version of it


def as_text(entries: Iterable[Entry]) -> str:
    """The file that :func:`read` understands."""
    return json.dumps({"format": _FORMAT, "entries": [asdict(one) for one in entries]}, indent=1) + "\n"
