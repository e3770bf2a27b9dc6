"""The newer architectures: what is written down is what the code gives, and memory stays small where it is scarce."""

import pytest

from benchmarks import newer
from benchmarks.newer import CASES, RESULTS, flops_table, measured, predictions_table
from benchmarks.rows import where
from benchmarks.speed import RATIOS
from tomadiff.evaluation.runs.rows import read


def test_every_model_is_there_at_every_ratio() -> None:
    found = read(RESULTS)
    assert [len(where(found, **case.columns)) for case in CASES] == [len(RATIOS)] * len(CASES)
    for table in (flops_table(found), predictions_table(found)):
        assert all(newer.title(case) in table for case in CASES)


def test_a_patch_holds_less_than_a_fiftieth_of_the_activations_at_4k() -> None:
    found = where(read(RESULTS), model="flux3", size="4096")
    assert len(found) == len(RATIOS)
    assert all(int(row["held_bytes"]) < 0.02 * int(row["peak_bytes"]) for row in found)


@pytest.mark.slow
def test_traced_again_the_numbers_are_the_same() -> None:
    (case,) = (case for case in CASES if case.model == "anima")  # the smallest
    numbers = {"unmerged_tflop", "share", "held_bytes", "peak_bytes", *newer.MACHINES}
    again, written = measured(case), where(read(RESULTS), **case.columns)
    assert [{name: row[name] for name in numbers} for row in again] == [
        {name: row[name] for name in numbers} for row in written
    ]
