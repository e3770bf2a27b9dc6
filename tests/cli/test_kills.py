"""The whole commands, killed at random moments of their lives: nothing finished is lost, and the end is the same.

A life that is to be cut short is forked, with everything imported already; the last one, which comes to its end, is
the real command in a process of its own. ``TOMADIFF_KILLS=8 pytest tests/cli/test_kills.py -s`` for more of them:
that many for each of eval, tune, paper and bench.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.cli.evaluations import EVAL, assert_same, timeless_report
from tests.saved import FRUGAL, save
from tomadiff.cli.main import app
from tomadiff.evaluation.runs.record import Run
from tomadiff.presets import Preset
from tomadiff.utils.reading import read_lines

KILLS = int(os.environ.get("TOMADIFF_KILLS", "2"))  # of each command
LONGEST = 900  # seconds; a command that takes longer hangs
Finished = dict[str, Any]

CPU = ("--device", "cpu", *FRUGAL)
NAMES = {
    "preset.json": lambda path: Preset.load(path),
    "preset.png": lambda path: Image.open(path).load(),
    "bench.csv": lambda path: len(list(csv.DictReader(path.open(encoding="utf-8")))) == 2,
    "merging-4096.json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    "paper.json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    "paper.html": lambda path: path.read_text(encoding="utf-8").endswith("</html>\n"),
    "report.html": lambda path: path.read_text(encoding="utf-8").endswith("</html>\n"),
    "run.json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    "summary.json": lambda path: json.loads(path.read_text(encoding="utf-8")),
}
"""Files that are whole or not there, and how to look at one."""


@dataclass(frozen=True)
class Command:
    """One of the commands.

    Attributes:
        family: of the tiny pipeline it is given.
        asked: its arguments for a model and a folder.
        same: raises unless two folders where it ended hold the same but for times.
    """

    family: str
    asked: Callable[[str, str], list[str]]
    same: Callable[[Path, Path], None]


# ---------------------------------------------------------------------------------------------- what is the same
def same_runs(whole: Path, cut: Path) -> None:
    one, other = Run(whole / "run"), Run(cut / "run")
    assert_same(one, other)
    copies = [timeless_report(run, cut / name / "run") for name, run in (("one", one), ("other", other))]
    assert copies[0] == copies[1]


def same_presets(whole: Path, cut: Path) -> None:
    for name in ("preset.json", "preset.png"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


def same_papers(whole: Path, cut: Path) -> None:
    assert_same(Run(whole / "paper" / "model"), Run(cut / "paper" / "model"))
    tables = [json.loads((place / "paper" / "paper.json").read_text())["tables"] for place in (whole, cut)]
    assert [len(table["rows"]) for table in tables[0]] == [len(table["rows"]) for table in tables[1]]
    timed = [json.loads((place / "paper" / "merging-4096.json").read_text())["rows"] for place in (whole, cut)]
    kinds = [[(row["ratio"], row["method"], row["op"]) for row in rows] for rows in timed]
    assert kinds[0] == kinds[1]


def same_tables(whole: Path, cut: Path) -> None:
    tables = [list(csv.DictReader((place / "bench.csv").open(encoding="utf-8"))) for place in (whole, cut)]
    counts = [[(row["method"], row["ratio"], row["flops"], row["rounds"]) for row in rows] for rows in tables]
    assert counts[0] == counts[1]


TUNE = ("--flops", "0.9", "--images", "2", *CPU)
PAPER = ("--tables", "4,6", "--prompts", "1", "--seeds", "1", "--rounds", "1", "--networks", "none", *CPU)
BENCH = ("--ratios", "0.5", "--rounds", "4", *CPU)
COMMANDS = {
    "eval": Command("sdxl", lambda model, out: ["eval", "-m", model, "--out", f"{out}/run", *EVAL], same_runs),
    "tune": Command(
        "sd15", lambda model, out: ["tune", "-m", model, "--out", f"{out}/preset.json", *TUNE], same_presets
    ),
    "paper": Command("sdxl", lambda model, out: ["paper", "-m", model, "--out", f"{out}/paper", *PAPER], same_papers),
    "bench": Command(
        "sdxl", lambda model, out: ["bench", "-m", model, "--csv", f"{out}/bench.csv", *BENCH], same_tables
    ),
}


# ---------------------------------------------------------------------------------------------- lives and deaths
def forked(asked: list[str]) -> int:
    """The command in a child that has imported everything; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        result = CliRunner().invoke(app, asked)
        code = result.exit_code
        if code:
            print(result.output, flush=True)
    finally:
        os._exit(code)


def finished(folder: Path) -> Finished:
    """What must never be lost: samples with their images, and rows of journals."""
    found: Finished = {}
    for path in folder.rglob("run.json"):
        run = Run(path.parent)
        for key, sample in run.samples().items():
            found[f"{path.parent.name} {key}"] = sample.seconds, run.image_path(key).read_bytes()
            run.image(key)
    for path in folder.rglob("*.unfinished.jsonl"):
        found |= {f"{path.name} {json.dumps(line['asked'])}": line["row"] for _, line in read_lines(path)}
    return found


def is_killed(asked: list[str], folder: Path, patience: float, after_work: bool) -> bool:
    """Kill a child after a time, counted from its start or from what it finishes next; false if it was done."""
    child, before, began = forked(asked), len(finished(folder)), time.monotonic()
    while after_work and len(finished(folder)) <= before and time.monotonic() - began < LONGEST:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.01)
    time.sleep(patience)
    os.kill(child, signal.SIGKILL)  # does nothing to one that has ended
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def trusted(folder: Path, before: Finished) -> Finished:
    """What was finished is there as it was, and whatever is there is whole; what is finished now."""
    for path in folder.rglob("*"):
        if path.name in NAMES and not path.name.startswith("."):
            assert NAMES[path.name](path) is not False, path
    now = finished(folder)
    journals = {name.split(" ")[0].removesuffix(".unfinished.jsonl") for name in before if ".unfinished.jsonl" in name}
    ended = {
        name for name in journals if list(folder.rglob(name)) and not list(folder.rglob(f"{name}.unfinished.jsonl"))
    }
    assert {key: row for key, row in before.items() if key.split(".unfinished")[0] not in ended}.items() <= now.items()
    return now


def assert_as_if_nothing_had_been(command: Command, whole: Path, folder: Path) -> None:
    """The command has ended, and only times tell it from one that nobody interrupted."""
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") or "unfinished" in path.name]
    trusted(folder, {})
    command.same(whole, folder)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", COMMANDS)
def test_kills_at_random_moments_lose_nothing_and_change_nothing(name: str, tmp_path: Path) -> None:
    command, dice = COMMANDS[name], random.Random(name)
    model, whole = save(command.family, tmp_path / "model"), tmp_path / "whole"
    whole.mkdir()
    began = time.monotonic()
    assert os.WEXITSTATUS(os.waitpid(forked(command.asked(str(model), str(whole))), 0)[1]) == 0
    life, folders = time.monotonic() - began, (tmp_path / str(number) for number in count())
    folder, struck, held = next(folders), 0, Finished()
    folder.mkdir()
    rows = list[int]()
    while struck < KILLS:
        after_work = struck % 2 == 1  # every other kill comes while it works, or just after
        patience = dice.uniform(0, life / 20 if after_work else life)
        if is_killed(command.asked(str(model), str(folder)), folder, patience, after_work):
            struck += 1
            held = trusted(folder, held)
            rows.append(len(held))
        else:  # it was done before its time: the next ones are killed on a folder of their own
            assert_as_if_nothing_had_been(command, whole, folder)
            folder, held = next(folders), Finished()
            folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    last = [sys.executable, "-m", "tomadiff", *command.asked(str(model), str(folder))]
    done = subprocess.run(last, env=environment, capture_output=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert_as_if_nothing_had_been(command, whole, folder)
    print(f"{name}: {KILLS} kills, finished rows after each {rows}; a life: {life:.1f} s")
