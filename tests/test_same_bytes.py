"""The same seed gives the same bytes: in every process, however busy the machine is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import tomadiff
from tests import tiny
from tests.same_bytes import SETTINGS, checksum
from tomadiff import ToMA, embedded
from tomadiff.cost.calibration import VARIABLE
from tomadiff.errors import SettingError

ROOT = Path(__file__).parents[1]


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that do nothing but count."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def generated(*options: str) -> dict[str, str]:
    """What a process of its own generates."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["OMP_WAIT_POLICY"] = "passive"  # threads that wait would spin, beside busy loops for minutes
    result = subprocess.run(
        [sys.executable, "-m", "tests.same_bytes", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_busy_machine_generates_the_same_image() -> None:
    with busy(2):
        found = generated("--steps", "2", "--models", "emoji-sdxl", "--settings", "0.375")
    here = checksum(embedded.load("emoji-sdxl"), SETTINGS["0.375"], steps=2)
    assert found == {"emoji-sdxl 0.375": here}


@pytest.mark.slow
def test_four_processes_generate_the_same_images() -> None:
    """Both embedded pipelines and all settings; two of the processes run beside a loop on both cores."""
    steps = os.environ.get("SAME_BYTES_STEPS", "20")
    options = ("--steps", steps, "--threads", os.environ.get("SAME_BYTES_THREADS", "2"))
    found = [generated(*options) for _ in range(2)]
    with busy(2):
        found += [generated(*options) for _ in range(2)]
    assert len(found[0]) == 2 * len(SETTINGS)
    assert not [text for text in found[0].values() if text.startswith("error")]
    assert found[1:] == found[:1] * 3


# ---------------------------------------------------------------------------------------------- no clock
@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> float:
        raise AssertionError("a clock was read")

    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns"):
        monkeypatch.setattr(time, name, read)


def run(model: Any) -> None:
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model(torch.randn(1, 4, 16, 16, generator=noise), 500, torch.randn(1, 5, 32, generator=noise))


@pytest.mark.usefixtures("no_clock")
def test_the_guard_reads_no_clock() -> None:
    unet = tiny.model("sd15")
    with tomadiff.apply(unet, ToMA.paper(), guard=True) as patch:
        run(unet)
        assert "guard: " in patch.summary()


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("guard", [False, True])
def test_a_speedup_reads_no_clock(guard: bool) -> None:
    unet = tiny.model("sd15")
    with (
        tomadiff.apply(unet, ToMA.paper(), speedup=9.0, guard=guard),
        pytest.raises(SettingError, match="out of reach"),
    ):
        run(unet)


def test_nothing_else_reads_a_clock() -> None:
    """Timing is for benchmarks and for `tomadiff calibrate`; what decides about an image imports none of it."""
    source = ROOT / "src" / "tomadiff"
    files = {str(path.relative_to(source)): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    clocks = {
        name for name, text in files.items() if re.search(r"^ *(import|from) (time|timeit)\b|cuda\.Event", text, re.M)
    }
    assert clocks == {"evaluation/runs/timer.py", "cost/measure.py", "cli/calibrate.py"}
    assert {name for name, text in files.items() if "cost.measure" in text} == {"cost/hardware.py"}
    assert {name for name, text in files.items() if "Hardware.measure(" in text} == {"cli/calibrate.py"}
