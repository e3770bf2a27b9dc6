"""Freed memory stays in the process: pages that were touched once are not asked for again."""

import subprocess
import sys

import pytest

RESIDENT = """
import sys
import torch
from tomadiff.utils.memory import keep_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1])  # pages

if sys.argv[1] == "keep" and not keep_memory():
    sys.exit(3)
before = resident()
tokens = torch.ones(12 * 2**20)  # 48 MiB: glibc maps results of more than 32 anew each time
alive = resident()
del tokens
print((resident() - before) / (alive - before))
"""


def share_that_stays(how: str) -> float:
    """Of a large result's pages, once it is freed."""
    found = subprocess.run([sys.executable, "-c", RESIDENT, how], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        pytest.skip("no glibc here")
    assert found.returncode == 0, found.stderr
    return float(found.stdout)


def test_kept_memory_stays_and_other_memory_does_not() -> None:
    assert share_that_stays("keep") > 0.9
    assert share_that_stays("give back") < 0.1


def test_where_there_is_no_mallopt_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    from tomadiff.utils import memory

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert not memory.keep_memory()
