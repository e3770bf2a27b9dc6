"""Tables on the terminal: whole numbers and headings at 80 columns, in a file too."""

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.evaluation.synthetic_runs import painted_run
from tomadiff.cli import bench, demo, paper, tables, tune
from tomadiff.evaluation.metrics.distances import METRICS
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.metrics.statistics import Interval
from tomadiff.evaluation.metrics.table import Results, Row
from tomadiff.evaluation.report.report import load_runs
from tomadiff.evaluation.runs.record import Sample


def console(width: int = 80, to_file: bool = False) -> Console:
    """A terminal of 80 columns, or a file: Rich takes ``COLUMNS`` for both."""
    return Console(file=io.StringIO(), force_terminal=not to_file, width=width, soft_wrap=True, color_system=None)


def printed(told: Console) -> str:
    text: str = told.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    return text


def words(text: str) -> set[str]:
    return set(re.split(r"\s*[│┃]\s*|\n", text))


def full_results() -> Results:
    """Three ratios of a method with every metric there is, as a long evaluation gives them."""
    interval = Interval(0.0123456, 0.0101, 0.0155, 24)
    metrics = dict.fromkeys(METRICS, interval) | {"psnr": Interval(34.567, 33.1, 35.9, 24)}
    rows = [Row("toma-stripe-whole+forecast-0.05", ratio, 24, 123.456, 1e12, metrics) for ratio in (0.25, 0.5, 0.75)]
    return Results("full", (Row("full", 0.0, 24, 234.5, 2e12), *rows))


@pytest.mark.parametrize("to_file", [False, True])
@pytest.mark.parametrize("width", [80, 60])
def test_what_does_not_fit_goes_into_another_table(width: int, to_file: bool) -> None:
    told = console(width, to_file)
    tables.print_results(told, full_results())
    text = printed(told)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("forecast 0.05") > 3, "each table names its rows"
    assert {"34.6 ± 1.4", "0.0123 ± 0.0027", "judge-FD ↓", "1.90×"} <= words(text)


def test_wide_is_one_table() -> None:
    told = console()
    tables.print_results(told, full_results(), wide=True)
    assert printed(told).count("method") == 1


def test_a_long_first_column_is_folded() -> None:
    told = console()
    tables.print_table(told, ["settings", "FLOPs", "PSNR"], [["toma " * 30, "60.0%", "34.5 dB"]])
    text = printed(told)
    assert max(map(len, text.splitlines())) <= 80
    assert {"60.0%", "34.5 dB"} <= words(text)


@pytest.mark.parametrize(
    ("interval", "most", "digits"),
    [
        (Interval(0.12345, 0.02, 0.31, 3), 5, 2),  # three images know no fifth digit
        (Interval(34.567, 33.1, 35.9, 24), 2, 1),
        (Interval(0.98765, 0.98761, 0.98769, 100), 4, 4),
        (Interval(0.0123, 0.0123, 0.0123, 1), 5, 4),
        (Interval(100.0, 100.0, 100.0, 9), 2, 0),
        (Interval(0.0, 0.0, 0.0, 9), 4, 4),
    ],
)
def test_digits_that_mean_something(interval: Interval, most: int, digits: int) -> None:
    assert interval.digits(most) == digits


# ---------------------------------------------------------------------------------------------- the commands' own
def measurement(title: str = "toma-stripe-whole+forecast-0.05") -> Any:
    return SimpleNamespace(
        title=title, ratio=0.5, least=123.456, median=234.567, spread=0.034, speed_up=1.234, flops=12345.6e9,
        launches=123456, peak_bytes=12345 * 2**20, plan_bytes=123456 * 1024, parts={"selecting": 1.0, "plain": 2.0},
    )  # fmt: skip


def test_bench() -> None:
    told = console()
    workload: Any = SimpleNamespace(title="exact SDXL at 1024²", unit="step")
    bench._show(told, workload, [measurement("full"), measurement()], wide=False)
    assert {"12345.6", "123.456", "123456", "1.23×", "plans KiB"} <= words(printed(told))


def test_tune() -> None:
    told = console()
    found: Any = [
        SimpleNamespace(candidate=SimpleNamespace(name="toma 0.42, levels 0 and 1, reuse every 3, forecast 0.05"),
                        cost=0.612, psnr=34.56, images=8)
    ]  # fmt: skip
    tune._show(told, found, wide=False)
    assert {"61.2%", "34.6 dB"} <= words(printed(told))


def test_paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = console()
    monkeypatch.setattr(paper, "Console", lambda **_: told)
    headings = ["method", *(f"DINO {number} ↓" for number in range(9))]
    rows = [[("ToMA stripe, whole-grid attention", ""), *([("0.01234", "[0.01, 0.02]")] * 9)]] * 3
    outcome: Any = SimpleNamespace(
        table=9, title="ToMA and the baselines", model="emoji-sdxl", headings=headings, rows=rows, judged=(), notes=()
    )
    paper._show([outcome], tmp_path, wide=False)
    text = printed(told)
    assert {"DINO 8 ↓", "0.01234"} <= words(text)
    assert max(len(line) for line in text.splitlines() if "│" in line) <= 80


def test_what_the_demo_says_of_ways_that_gain_nothing(tmp_path: Path) -> None:
    """Where nothing was left out, and where making plans takes longer than they save."""
    run = painted_run(tmp_path / "run", prompts=["a lake"])
    image = run.image(next(iter(run.samples())))
    run.add(Sample("recommended", 0, "a lake", 0, 2.1, 2e12), image)
    run.add(Sample("toma", 0.1, "a lake", 0, 2.2, 1.9e12), image)
    told = demo._remarks(run, load_runs([run.folder])[0])
    assert any(line.startswith("apply(pipe): nothing is left out") for line in told)
    assert told[-1].startswith("Slower than in full: ToMA, 10%. ")


def test_demo(tmp_path: Path) -> None:
    told = console()
    run = painted_run(tmp_path / "run")
    measure(run, networks={})
    demo._show(told, run, load_runs([run.folder])[0])
    text = printed(told)
    assert {"ToMA, 50%", "1.33×", "75%"} <= words(text)
    assert max(map(len, text.splitlines())) <= 80
