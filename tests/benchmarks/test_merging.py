import csv
from pathlib import Path

from benchmarks.machine import environment
from benchmarks.merging import RESULTS, table, write_csv
from tomadiff.evaluation.timing.merge_speed import PACKAGE, PROMISED, SIZES, Timing

TIMINGS = [
    Timing(4096, 640, 0.5, method, method, op, 0.002, 0.003, 1)
    for method in (PACKAGE, *PROMISED)
    for op in ("merge", "unmerge")
]


def test_a_column_for_each_contender_and_a_row_for_each_question() -> None:
    shown = table(TIMINGS, environment())
    assert (shown.row_count, len(shown.columns)) == (2, 3 + 3)


def test_every_row_of_the_csv_can_be_read_alone(tmp_path: Path) -> None:
    write_csv(tmp_path / "new" / "merging.csv", TIMINGS, environment(), rounds=5)
    with (tmp_path / "new" / "merging.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(TIMINGS)
    assert (rows[0]["best_ms"], rows[0]["median_ms"], rows[0]["rounds"]) == ("2.000", "3.000", "5")
    assert all(row["cpu"] and row["torch"] for row in rows)


def test_the_committed_results_keep_the_promise() -> None:
    with RESULTS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    best = {(row["method"], row["tokens"], row["ratio"], row["op"]): float(row["best_ms"]) for row in rows}
    rivals = {key[1:]: value for key, value in best.items() if key[0] == PACKAGE}
    assert {int(tokens) for tokens, _, _ in rivals} == set(SIZES)
    for method in PROMISED:
        assert all(best[method, *question] < value for question, value in rivals.items())
