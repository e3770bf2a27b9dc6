"""The whole command, killed at random moments of its life: nothing finished is lost, and the end is the same.

A life that is to be cut short is forked, with everything imported already; the last one, which comes to its end, is
the real command in a process of its own. ``TOMADIFF_KILLS=20 pytest tests/commands/test_kills.py -s`` for more of them.
"""

import os
import random
import signal
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.commands.evaluations import EVAL, assert_same, start, timeless_report
from tests.saved import save
from tomadiff.cli import app
from tomadiff.evaluate.record import Run, RunError
from tomadiff.evaluate.table import Results

KILLS = int(os.environ.get("TOMADIFF_KILLS", "6"))
LONGEST = 600  # seconds; a command that takes longer hangs


def lives(model: Path, run: Run) -> None:
    """The real command, from its start to its end."""
    process = start(model, run.folder)
    output, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, output.decode()


def forked(model: Path, run: Run) -> int:
    """The same in a child that has imported everything; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        result = CliRunner().invoke(app, ["eval", "--model", str(model), "--out", str(run.folder), *EVAL])
        code = result.exit_code
        if code:
            print(result.output, flush=True)
    finally:
        os._exit(code)


def is_killed(model: Path, run: Run, patience: float, after_work: bool) -> bool:
    """Kill a child after a time, counted from its start or from the next sample it finishes; false if it was done."""
    child, before, began = forked(model, run), len(run.samples()), time.monotonic()
    while after_work and len(run.samples()) <= before and time.monotonic() - began < LONGEST:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.002)
    time.sleep(patience)
    os.kill(child, signal.SIGKILL)  # does nothing to one that has ended
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def doing(run: Run) -> str:
    """How far the command got, in words."""
    if not (run.folder / "run.json").exists():
        return "loading"
    try:
        Results.load(run.folder)
    except RunError:
        return "drawing" if len(run.samples()) < 8 else "measuring"
    return "reporting"


def trusted(run: Run, before: dict[str, tuple[float, bytes]]) -> dict[str, tuple[float, bytes]]:
    """Finished samples are there as they were, and whatever is there is whole; the finished ones."""
    now = {key: (sample.seconds, run.image_path(key).read_bytes()) for key, sample in run.samples().items()}
    assert before.items() <= now.items()
    for key in now:
        run.image(key)
    page = run.folder / "report.html"
    assert not page.exists() or page.read_text(encoding="utf-8").endswith("</html>\n")
    return now


def assert_as_if_nothing_had_been(whole: Run, run: Run) -> None:
    """The run has ended, and only its times tell it from one that nobody interrupted."""
    assert_same(whole, run)
    copies = run.folder.parent
    reports = [timeless_report(one, copies / name / "run") for name, one in (("whole", whole), ("killed", run))]
    assert reports[0] == reports[1]
    assert not list(run.folder.rglob(".*"))  # no torn file is left


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kills_at_random_moments_lose_nothing_and_change_nothing(tmp_path: Path) -> None:
    model, whole = save("sdxl", tmp_path / "model"), Run(tmp_path / "whole" / "run")
    began, dice, struck = time.monotonic(), random.Random(0), Counter[str]()
    assert os.WEXITSTATUS(os.waitpid(forked(model, whole), 0)[1]) == 0
    life, folders = time.monotonic() - began, (tmp_path / str(number) / "run" for number in count())
    run, finished = Run(next(folders)), {}
    while struck.total() < KILLS:
        after_work = struck.total() % 2 == 1  # every other kill comes while it draws, or just after
        if is_killed(model, run, dice.uniform(0, life / 20 if after_work else life), after_work):
            struck[doing(run)] += 1
            finished = trusted(run, finished)
        else:  # it was done before its time: the next ones are killed on a run of their own
            assert_as_if_nothing_had_been(whole, run)
            run, finished = Run(next(folders)), {}
    lives(model, run)
    trusted(run, finished)
    assert_as_if_nothing_had_been(whole, run)
    told = f"{KILLS} kills over {run.folder.parent.name} whole runs and a last one"
    print(f"{told}, while {dict(struck)}; a life: {life:.1f} s")
