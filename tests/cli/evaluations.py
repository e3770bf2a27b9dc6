"""A small evaluation: how to start it, and when two of them are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.saved import FRUGAL
from tomadiff.evaluation.metrics.table import Results
from tomadiff.evaluation.report.page import page
from tomadiff.evaluation.report.report import load_runs, markdown
from tomadiff.evaluation.runs.record import Run

EVAL = ("--ratios", "0.5", "--seeds", "2", "--limit", "2", "--networks", "none", "--device", "cpu", *FRUGAL)


def start(model: Path, out: Path, *launcher: str) -> subprocess.Popen[bytes]:
    """The real command, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", *launcher, "tomadiff", "eval", "--model", str(model), "--out", str(out), *EVAL]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def assert_same(one: Run, other: Run) -> None:
    """Equal samples and measurements but for times, and equal images."""
    samples, others = ({key: replace(s, seconds=0) for key, s in run.samples().items()} for run in (one, other))
    assert samples == others
    assert all(np.array_equal(np.asarray(one.image(key)), np.asarray(other.image(key))) for key in samples)
    rows, others_rows = ([replace(row, seconds=0) for row in Results.load(run.folder).rows] for run in (one, other))
    assert rows == others_rows


def timeless_report(run: Run, folder: Path) -> str:
    """Page and table of a run if every image had taken a second; ``folder`` is used for a copy."""
    copy = Run.begin(folder, run.config, {})
    for key, sample in sorted(run.samples().items()):
        copy.add(replace(sample, seconds=1.0), run.image(key))
    results = Results.load(run.folder)
    replace(results, rows=tuple(replace(row, seconds=1.0) for row in results.rows)).save(folder)
    told = load_runs([folder])
    return page(told, "the same") + markdown(told)
