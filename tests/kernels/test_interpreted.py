"""Kernels equal their definitions, in Triton's interpreter: no GPU is needed.

The interpreter is switched on for a whole process, and the tests beside this one need it off.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install 'tomadiff[triton]'")

FOLDER = Path(__file__).parent / "interpreted"


def test_kernels_equal_their_definitions() -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    run = subprocess.run(
        command,
        cwd=FOLDER.parents[2],
        env={**inherited, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
