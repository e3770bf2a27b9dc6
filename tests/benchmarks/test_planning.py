import csv
import time
from pathlib import Path

from benchmarks.machine import environment
from benchmarks.planning import PROMISED, Job, name, promised, run_in_turn, share, table, write_csv
from tomadiff import Stripes, Tiles


def test_jobs_run_in_turn_and_warm_up_first() -> None:
    order: list[str] = []
    jobs = [Job(what, None, lambda what=what: order.append(what)) for what in ("block", "plan")]
    run_in_turn(jobs, runs=3, warmup=1)
    assert order == ["block", "plan"] * 4
    assert [len(job.seconds) for job in jobs] == [3, 3]


def test_shares_compare_the_fastest_runs() -> None:
    block, plan = Job("block", None, time.sleep, [0.2, 0.1]), Job("plan", Tiles(8), time.sleep, [0.004, 0.9])
    assert abs(share(plan, block) - 0.04) < 1e-9
    assert plan.middle > plan.best == 4.0


def test_the_promise_is_found_by_what_and_where() -> None:
    jobs = [Job("plan", Tiles(4), time.sleep), Job("merge", Tiles(8), time.sleep), Job(*PROMISED, time.sleep)]
    assert promised(jobs) is jobs[2]


def test_regions_are_named_as_one_writes_them() -> None:
    assert [name(cut) for cut in (Tiles(8), Stripes(64), None)] == ["Tiles(8)", "Stripes(64)", "–"]


def test_every_row_of_the_csv_can_be_read_alone(tmp_path: Path) -> None:
    jobs = [Job("block", None, time.sleep, [0.1]), Job("plan", Tiles(8), time.sleep, [0.002])]
    write_csv(tmp_path / "new" / "planning.csv", jobs, environment())
    with (tmp_path / "new" / "planning.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["share_of_block"] for row in rows] == ["1.00000", "0.02000"]
    assert all(row[field] for row in rows for field in ("cpu", "torch", "diffusers", "threads", "dtype", "runs"))
    assert table(jobs, environment()).row_count == 2
