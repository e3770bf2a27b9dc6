"""Fuzz the package: ``python -m tests.fuzz --runs 500 --seed 0``.

Hypothesis makes the cases and shrinks what fails. Runs are done in portions; finished portions are noted in a file, so
that a stopped run goes on where it was. The exit code is 1 if any case broke a promise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.cases import Case, cases
from tests.fuzz.models import FAMILIES, FURTHER
from tests.fuzz.promises import check

PORTION = 25


def main() -> None:
    """Parse the arguments, run what is left to run, and say what was found."""
    arguments = _arguments()
    torch.set_num_threads(1)
    log = arguments.log or Path("build") / f"fuzz-{'further-' * arguments.further}{arguments.seed}.jsonl"
    if arguments.case:
        check(Case(**json.loads(arguments.case)))
        return print("All promises hold.")
    log.parent.mkdir(parents=True, exist_ok=True)
    rows = _known(log)
    for portion in range(-(-arguments.runs // PORTION)):
        if portion not in rows:
            rows[portion] = _portion(arguments, portion)
            with log.open("a") as file:
                file.write(json.dumps(rows[portion]) + "\n")
        _tell(rows[portion])
    broken = [row for row in rows.values() if row["failure"]]
    print(f"{sum(row['runs'] for row in rows.values())} runs, {len(broken)} portions with a broken promise; log: {log}")
    sys.exit(bool(broken))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="how many cases (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default 0)")
    parser.add_argument("--further", action="store_true", help="families whose pipelines here have one size")
    parser.add_argument("--log", type=Path, help="where finished portions are noted (default build/fuzz-SEED.jsonl)")
    parser.add_argument("--case", help='run one case only, as JSON: \'{"family": "sdxl", "event": "copy"}\'')
    return parser.parse_args()


def _known(log: Path) -> dict[int, dict[str, Any]]:
    """Portions that an earlier run finished; a line that was cut off is done again, and failures are tried again."""
    rows: dict[int, dict[str, Any]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not row["failure"]:
            rows[row["portion"]] = row
    return rows


def _portion(asked: argparse.Namespace, portion: int) -> dict[str, Any]:
    """Run some cases; the first failure ends the portion, shrunk to its simplest form."""
    done: list[Case] = []

    @seed(1000 * asked.seed + portion)
    @settings(
        max_examples=min(PORTION, asked.runs - portion * PORTION),
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(cases(families=FURTHER if asked.further else FAMILIES))
    def run(case: Case) -> None:
        done.append(case)
        check(case)

    began, failure = time.perf_counter(), ""
    try:
        run()
    except Exception as error:
        failure = f"{done[-1]}: {type(error).__name__}: {error}"
        print(traceback.format_exc(limit=-3), flush=True)
    return {"portion": portion, "runs": len(done), "seconds": time.perf_counter() - began, "failure": failure}


def _tell(row: dict[str, Any]) -> None:
    verdict = row["failure"] or "all promises hold"
    print(f"portion {row['portion']:3}: {row['runs']:3} runs, {row['seconds']:5.0f} s, {verdict}", flush=True)


if __name__ == "__main__":
    main()
