"""Kernels compile for GPUs that are not here, and spill nothing where it matters."""

import os

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install 'tomadiff[triton]'")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from benchmarks.ahead_of_time import ARCHITECTURES, LENGTHS, Program, occupied, programs

OLDEST, *NEWER = ARCHITECTURES
OFTEN = [program for program in programs(("fp16",)) if program.tokens < 256]
RARELY = [program for program in programs() if program not in OFTEN]


def name(program: Program) -> str:
    return f"{program.name}-{program.tokens}-{program.dtype}"


@pytest.mark.parametrize("architecture", [OLDEST, *(pytest.param(one, marks=pytest.mark.slow) for one in NEWER)])
@pytest.mark.parametrize("program", OFTEN, ids=name)
def test_regions_of_16_and_64_tokens_spill_nothing(program: Program, architecture: int) -> None:
    found = occupied(program, architecture)
    assert found.spills == 0
    assert found.registers <= 128  # so that at least four programs of four warps share a multiprocessor
    assert found.shared <= 48 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("program", RARELY, ids=name)
def test_every_dtype_and_length_compiles(program: Program, architecture: int) -> None:
    found = occupied(program, architecture)
    assert found.shared <= 99 * 1024  # what sm_86 and sm_89 give a program at most
    assert found.spills == 0 or program.tokens == 256


def test_all_kernels_are_compiled_for_all_lengths() -> None:
    kernels = {f"{name}{part}" for name in ("merge", "unmerge_add") for part in ("", ", shared")}
    short = {
        f"local_plan{part}"
        for part in ("", ", transpose", ", choice", ", weights", ", shared choice", ", shared weights")
    }
    expected = {(k, n) for k in kernels for n in LENGTHS} | {(k, n) for k in short for n in LENGTHS if n <= 64}
    assert {(program.name, program.tokens) for program in programs()} == expected
