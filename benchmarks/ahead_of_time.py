"""Compile the kernels for GPUs that are not there, and read off what each occupies: registers, spills, shared memory.

Triton compiles for any target, and the assembler it brings along reports what a program uses (``ptxas -v``).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tomadiff.kernels import LONGEST_PLANNED
from tomadiff.kernels.programs import local_plan, merge

ARCHITECTURES = (80, 86, 89, 90)
"""Compute capabilities: A100, RTX 3090 / A6000, RTX 4090 / RTX 6000 Ada, H100."""

LENGTHS = (16, 64, 256)
POINTERS = {  # what every pointer argument points at; None: the tokens' own dtype
    "mask": "i1",
    "index": "i64",
    "places": "i64",
    "near": "fp32",
    "worth": "fp32",
    "starts": "i64",
    **dict.fromkeys(("tokens", "matrix", "merged", "merge", "unmerge", "mass", "residual")),
}
LOCAL_PLAN = {
    "": {"CHOOSES": True, "WEIGHTS": True, "FITS": True, "SHARES": False},
    ", transpose": {"CHOOSES": True, "WEIGHTS": True, "FITS": False, "SHARES": False},
    ", choice": {"CHOOSES": True, "WEIGHTS": False, "FITS": False, "SHARES": False},
    ", weights": {"CHOOSES": False, "WEIGHTS": True, "FITS": True, "SHARES": False},
    ", shared choice": {"CHOOSES": True, "WEIGHTS": False, "FITS": False, "SHARES": True},
    ", shared weights": {"CHOOSES": False, "WEIGHTS": True, "FITS": True, "SHARES": True},
}
# Numbers of which nothing is known; others divide by 16.
SMALL = {"regions", "count", "kept", "groups", "members", "samples_of_matrix", "merged_count"}


@dataclass(frozen=True)
class Program:
    """One kernel with all its sizes settled."""

    name: str
    tokens: int
    dtype: str
    kernel: Any
    constants: dict[str, Any]
    warps: int


@dataclass(frozen=True)
class Occupied:
    """What one launch needs: registers and spilled bytes per thread, shared memory in bytes per program."""

    registers: int
    spills: int
    shared: int


def programs(dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")) -> Iterator[Program]:
    """Every kernel for every region length, at ratio 0.5."""
    for length in LENGTHS:
        for dtype in dtypes:
            yield from _programs_of_tokens(length, dtype)


def _programs_of_tokens(length: int, dtype: str) -> Iterator[Program]:
    kept, size = length // 2, 4 if dtype == "fp32" else 2
    if length <= LONGEST_PLANNED:
        for name, parts in LOCAL_PLAN.items():
            kernel, sizes = local_plan.tuning(length, size, weights=parts["WEIGHTS"])
            yield _program(f"local_plan{name}", length, dtype, kernel, parts, sizes)
    for name, shares in (("", False), (", shared", True)):
        parts, rows = {"PRECISION": "ieee", "SHARES": shares}, length if shares else kept
        yield _program(f"merge{name}", length, dtype, merge.merge, parts, merge.tuning(rows, length, size))
        parts, sizes = parts | {"WITH_RESIDUAL": True}, merge.tuning(length, rows, size)
        yield _program(f"unmerge_add{name}", length, dtype, merge.unmerge_add, parts, sizes)


def _program(
    name: str, length: int, dtype: str, kernel: Any, constants: dict[str, Any], sizes: dict[str, int]
) -> Program:
    settled = {key: value for key, value in sizes.items() if key != "num_warps"}
    return Program(name, length, dtype, kernel, constants | settled, sizes["num_warps"])


def compiled(program: Program, architecture: int) -> Any:
    """Triton's result for one GPU; needs none."""
    signature = {name: _kind(name, program) for name in program.kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind == "i32" and name not in SMALL)
    }
    source = ASTSource(program.kernel, signature, program.constants, aligned)
    return triton.compile(
        source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": program.warps, "num_stages": 3}
    )


def _kind(name: str, program: Program) -> str:
    if name in program.constants:
        return "constexpr"
    if name in POINTERS:
        return f"*{POINTERS[name] or program.dtype}"
    return "fp32" if name in ("temperature", "pull") else "i32"


def occupied(program: Program, architecture: int) -> Occupied:
    """Compile, assemble, and read what the assembler says."""
    result = compiled(program, architecture)
    said = _assembler_says(result.asm["ptx"])
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    if registers is None or not spills:
        raise RuntimeError(f"ptxas -v says something unknown: {said}")
    return Occupied(int(registers[1]), sum(map(int, spills)), result.metadata.shared)


def _assembler_says(ptx: str) -> str:
    target = re.search(r"\.target\s+(sm_\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        command = [assembler(), "-v", f"--gpu-name={target[1]}", str(source), "-o", str(source.with_suffix(".cubin"))]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def assembler() -> str:
    """The ``ptxas`` that comes with Triton."""
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas")
