"""FLOPs, bytes, launches and live bytes of what is timed; ``python -m benchmarks.speed_counted``.

The cases of :mod:`benchmarks.speed`, and SDXL at 2048², which would take minutes a step: shapes are enough to count.
Writes ``benchmarks/results/speed_counted.csv``, the same on every machine. Traces are kept in ``build/``, for
:mod:`benchmarks.speed_report` predicts from them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path

import torch

from benchmarks.speed import BASELINE, CASES, CONTENDERS, RATIOS, ROOT, Case, Contender, parse_case
from tomadiff import kernels
from tomadiff.cost import Trace
from tomadiff.cost.op import Op
from tomadiff.evaluation.runs.flops import count_limit
from tomadiff.evaluation.runs.rows import Row, append
from tomadiff.evaluation.timing.prediction import Window, window
from tomadiff.evaluation.timing.workloads import Step

RESULTS = ROOT / "benchmarks" / "results" / "speed_counted.csv"
COUNTED = (Case("sdxl", 256), *CASES, Case("sdxl", 2048))
LIMIT = "merging free"


def _source() -> str:
    """A hash of the package: traces of another version of it are of no use."""
    files = sorted((ROOT / "src" / "tomadiff").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


SOURCE = _source()  # as it was imported, whatever happens to the files while this runs

Key = tuple[Case, str, float]


def keys(cases: Sequence[Case]) -> Iterator[Key]:
    """Every contender at every ratio on every case, after the unmerged model."""
    for case in cases:
        yield case, BASELINE, 0.0
        yield from ((case, name, ratio) for name, known in CONTENDERS.items() for ratio in known)


@lru_cache(maxsize=1)
def _step(case: Case) -> Step:
    return case.step("meta")


def traced(key: Key, contenders: Mapping[str, Contender] | None = None, *, fused: bool = False) -> Window:
    """A window of a contender (one that is timed, unless told), kept from last time if the package is the same.

    With ``fused``, as on a GPU that has our kernels.
    """
    path = _kept(key, "-fused" if fused else "")
    if path.exists():
        return _read(path.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    case, name, ratio = key
    model, given = _step(case).target, _step(case).inputs
    if name == BASELINE:
        found = window(model, given, None)
    else:
        known = (contenders or CONTENDERS)[name][ratio]
        with kernels.assumed(fused):
            found = window(model, given, known.method, known.schedule)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_written(found), encoding="utf-8")
    return found


def _written(found: Window) -> str:
    """As JSON: share, operators with how often each came, and peaks of every kind of step."""
    return json.dumps(
        {
            name: [share, [[*astuple(op), times] for op, times in own.ops.items()], own.peak, own.peak_inside]
            for name, (share, own) in found.parts.items()
        },
        default=lambda dtype: str(dtype).removeprefix("torch."),
    )


def _read(text: str) -> Window:
    parts: dict[str, tuple[float, Trace]] = {}
    for name, (share, ops, *peaks) in json.loads(text).items():
        found: Counter[Op] = Counter()
        found.update({Op(kind, getattr(torch, dtype), *sizes): times for kind, dtype, *sizes, times in ops})
        parts[name] = share, Trace(found, *peaks)
    return Window(parts)


def _kept(key: Key, how: str = "") -> Path:
    case, name, ratio = key
    return ROOT / "build" / "traces" / SOURCE / f"{'-'.join(case.columns.values())}-{name}-{ratio:g}{how}.json"


def row(key: Key, found: Window, unmerged: Window) -> Row:
    """A line of the CSV; the mean step of a window of ten."""
    case, name, ratio = key
    mean, before = found.mean, unmerged.mean
    return {
        **case.columns,
        "method": name,
        "ratio": f"{ratio:g}",
        "tflop": f"{mean.flops / 1e12:.4f}",
        "flop_share": f"{mean.flops / before.flops:.5f}",
        "gb_moved": f"{mean.moved / 1e9:.3f}",
        "launches": f"{mean.launches:.1f}",
        "peak_mib": f"{mean.peak / 2**20:.1f}",
        "block_peak_mib": f"{mean.peak_inside / 2**20:.1f}",
    }


def limits(case: Case) -> list[Row]:
    """FLOPs that would be left if merging and planning were free."""
    model, given = _step(case).target, _step(case).inputs
    whole = traced((case, BASELINE, 0.0)).mean.flops
    found = {ratio: count_limit(model, given, ratio, skip=0) for ratio in RATIOS}
    blank = dict.fromkeys(("gb_moved", "launches", "peak_mib", "block_peak_mib"), "")
    return [
        {
            **case.columns,
            "method": LIMIT,
            "ratio": f"{ratio:g}",
            "tflop": f"{flops / 1e12:.4f}",
            "flop_share": f"{flops / whole:.5f}",
            **blank,
        }
        for ratio, flops in found.items()
    ]


def main(given: Sequence[str] | None = None) -> None:
    """Count, in one process per core, and write."""
    parser = argparse.ArgumentParser(description="What the timed steps compute, move, launch and hold.")
    parser.add_argument("--cases", nargs="*", help="model:size or model:size:depth; default: all")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    wanted = parser.parse_args(given)
    cases = [parse_case(text) for text in wanted.cases] if wanted.cases else COUNTED
    todo = list(keys(cases))
    wanted.out.unlink(missing_ok=True)
    with ProcessPoolExecutor(wanted.processes) as pool:
        found = dict(zip(todo, pool.map(traced, todo), strict=True))
    for key, own in found.items():
        append(wanted.out, row(key, own, found[key[0], BASELINE, 0.0]))
    for case in cases:
        for line in limits(case):
            append(wanted.out, line)


if __name__ == "__main__":
    main()
