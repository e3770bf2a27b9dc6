"""Freed memory stays in the process: pages that were touched once are not asked for again."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from tomadiff.utils.memory import keep_memory

if sys.argv[1] == "keep" and not keep_memory():
    sys.exit(3)
tokens = torch.ones(12 * 2**20)  # 48 MiB: glibc maps results of more than 32 anew each time
for _ in range(10):  # until the heap has room for both results, whatever lies between them
    (tokens + 1).add_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    (tokens + 1).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    found = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        pytest.skip("no glibc here")
    assert found.returncode == 0, found.stderr
    return int(found.stdout)


def test_kept_memory_is_not_asked_for_again() -> None:
    # Half: small blocks may split a freed one, and glibc then asks for a few more pages.
    assert faults("keep") < 0.5 * faults("give back")


def test_where_there_is_no_mallopt_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    from tomadiff.utils import memory

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert not memory.keep_memory()
