"""Named machines: the constants that stand for a device, found by its name and its properties alone.

No clock is read here, so the same kind of device with the same number of threads always has the same constants, however
busy it is, and everything that is decided by them is decided alike.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tomadiff.cost.hardware import Hardware
from tomadiff.kernels import fused

# ---------------------------------------------------------------------------------------------- GPUs
_REACHED = 0.7  # share of the published dense rate that large products of diffusion models reach in practice
_STREAMED = 0.8  # the same for memory
_EAGER = 5e-6  # seconds between launches of eager PyTorch on a current CPU

USUAL_SHARES = {  # of GPUs, assumed alike for all: the rate of products for the first three, of memory for the others
    "attention": 0.6,
    "convolution": 0.7,
    "batched": 0.25,
    "function": 1.0,
    "gather": 0.5,
    "scatter": 0.1,
}

_HALF, _BRAIN, _FULL = torch.float16, torch.bfloat16, torch.float32


def _gpu(name: str, tera: Mapping[torch.dtype, float], giga: float, source: str) -> Hardware:
    """A data sheet, with what is usually reached of it."""
    return Hardware(
        name=name,
        matmul={dtype: _REACHED * rate * 1e12 for dtype, rate in tera.items()},
        bandwidth=_STREAMED * giga * 1e9,
        launch=_EAGER,
        shares=USUAL_SHARES,
        overlaps=True,
        fuses=_BRAIN in tera,  # as old as our kernels: Ampere
        source=source,
    )


GPUS: dict[str, Hardware] = {
    "V100": _gpu("V100", {_HALF: 125, _FULL: 15.7}, 900, "Tesla V100 data sheet (SXM2)"),
    "RTX 8000": _gpu("RTX 8000", {_HALF: 130.5, _FULL: 16.3}, 672, "Quadro RTX 8000 data sheet"),
    "RTX 6000 Ada": _gpu(
        "RTX 6000 Ada",
        {_HALF: 364.2, _BRAIN: 364.2, _FULL: 91.1},
        960,
        "RTX 6000 Ada data sheet: 1457 TFLOPS of FP8 with sparsity are 364.2 of dense FP16",
    ),
    "A100": _gpu("A100", {_HALF: 312, _BRAIN: 312, _FULL: 19.5}, 2039, "A100 80 GB data sheet (SXM)"),
    "H100": _gpu("H100", {_HALF: 989.4, _BRAIN: 989.4, _FULL: 67}, 3350, "H100 data sheet (SXM), without sparsity"),
    "RTX 4090": _gpu(
        "RTX 4090",
        {_HALF: 165.2, _BRAIN: 165.2, _FULL: 82.6},
        1008,
        "Ada architecture white paper: dense, FP32 accumulation",
    ),
}
"""Published dense rates and bandwidths; the shares reached of them are assumptions, the same for all, and stated above.

Float32 is what torch does by default, without TF32. A V100 and an RTX 8000 have no bfloat16: it counts as float32.
"""

_PROCESSORS = {"V100": 80, "RTX 8000": 72, "RTX 6000 Ada": 142, "A100": 108, "H100": 132, "RTX 4090": 128}
_RELATIVES = {  # the known GPU that stands for others from a compute capability on
    (0, 0): "V100",
    (7, 5): "RTX 8000",
    (8, 0): "A100",
    (8, 6): "RTX 4090",
    (9, 0): "H100",
    (12, 0): "RTX 4090",
}


def _cuda(name: str, capability: tuple[int, int], processors: int, amd: bool) -> Hardware:
    """A known GPU by its name, else a relative of its generation; both scaled to the multiprocessors there are.

    So a smaller edition of a known GPU, or a slice of one, counts as what it is. AMD numbers generations in its own
    way: a V100 stands for all of theirs.
    """
    words = set(name.replace("-", " ").split())
    known = [one for one in GPUS if set(one.split()) <= words]
    relative = "V100" if amd else _RELATIVES[max(first for first in _RELATIVES if first <= capability)]
    model = max(known, key=len, default=relative)
    share = processors / _PROCESSORS[model]
    if known and share == 1:
        return replace(GPUS[model], name=name)
    return replace(
        GPUS[model],
        name=name,
        matmul={dtype: rate * share for dtype, rate in GPUS[model].matmul.items()},
        bandwidth=GPUS[model].bandwidth * share,
        source=f"{model} scaled to {processors} multiprocessors",
    )


_OTHERS: dict[str, Hardware] = {
    "mps": _gpu("Apple GPU", {_HALF: 5.2, _FULL: 5.2}, 200, "Apple's figures for the M1 Pro stand for all"),
    "xpu": _gpu(
        "Intel GPU", {_HALF: 137, _BRAIN: 137, _FULL: 19.7}, 560, "Intel's figures for the Arc A770 stand for all"
    ),
}

# ---------------------------------------------------------------------------------------------- CPUs
# Of one thread, in float32, by torch's name for the instructions it uses. Fitted to timed steps of the full SDXL at
# 512² (benchmarks/results/speed.csv and hardware.csv: two threads of an AMD EPYC with AVX512) and rounded. Others have
# vectors of half and of a quarter the width.
_PER_THREAD = {"AVX512": 110e9, "AVX2": 55e9}
_NARROW = 28e9
_MOVED, _ORDERED = 45e9, 7e9  # bytes of one thread, and bytes of weights that it puts in order
_ASKED = 1.25e-6  # seconds per operator
_MANY = 16  # threads beyond which eager PyTorch is assumed to gain nothing
_CPU_SHARES = {
    "attention": 0.85,
    "convolution": 1.8,
    "batched": 0.43,
    "function": 0.45,
    "gather": 0.16,
    "scatter": 0.033,
}


def _cpu(threads: int, instructions: str) -> Hardware:
    """A CPU by what torch uses of it. Half precision counts as fast as float32: some have instructions, some do not."""
    busy = min(threads, _MANY)
    return Hardware(
        name=f"CPU, {instructions}, {threads} thread{'s' * (threads != 1)}",
        matmul={_FULL: busy * _PER_THREAD.get(instructions, _NARROW)},
        bandwidth=busy * _MOVED,
        launch=_ASKED,
        shares=_CPU_SHARES,
        fresh=busy * _MOVED,
        weights=busy * _ORDERED,
        source="constants of tomadiff, fitted on an AMD EPYC",
    )


# ---------------------------------------------------------------------------------------------- which one
def machine_of(device: torch.device, dtype: torch.dtype, threads: int) -> Hardware:
    """The constants that come with tomadiff for a device; a kind of device that nobody knows counts as a V100."""
    if device.type == "cpu":
        return _cpu(threads, torch.backends.cpu.get_cpu_capability())
    if device.type == "cuda":
        about: Any = torch.cuda.get_device_properties(device)
        amd = torch.version.hip is not None
        found = _cuda(about.name, (about.major, about.minor), about.multi_processor_count, amd)
        return replace(found, fuses=fused("auto", device, dtype, 1))
    unknown = replace(GPUS["V100"], name=device.type, source="an unknown device, taken for a V100")
    return _OTHERS.get(device.type, unknown)


def device_name(device: torch.device) -> str:
    """What a device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor() if device.type == "cpu" else device.type


def processor() -> str:
    """The processor's name with its number of cores; Linux keeps it in a file, others in ``platform``."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} × {len(names)}" if names else platform.processor()
