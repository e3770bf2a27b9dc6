"""The benchmark of speed, on a thin model and on made-up results: what is timed, skipped, predicted and promised."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from benchmarks import compiled, speed, speed_counted, speed_guard, speed_report, speed_results
from benchmarks.machine import environment
from benchmarks.rows import where
from benchmarks.speed import BASELINE, CASES, CONTENDERS, RATIOS, Case, measure, note_machine, parse_case, row
from benchmarks.speed_counted import LIMIT
from benchmarks.speed_results import FITTED, Promise, Results, fitted_machine, predictions, predictor, promises
from tests.evaluation.synthetic_runs import thin_sd15
from tomadiff import Schedule
from tomadiff.cost import Hardware, Op, Trace
from tomadiff.evaluation.runs.rows import append, read
from tomadiff.evaluation.timing.prediction import Window
from tomadiff.utils.reading import FileError

THIN = Case("sd15", 64)
QUIET = Console(quiet=True)
MACHINE = Hardware("made up", {torch.float32: 1e12}, 1e11, 1e-5)


# ---------------------------------------------------------------------------------------------- timing
def test_a_stopped_run_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thin_sd15(monkeypatch)
    path, plan = tmp_path / "speed.csv", {"toma-paper": (0.25, 0.5), "todo": (0.75,), "tomesd": (0.5,)}
    measure(THIN, {"toma-paper": (0.25,)}, 1, path, QUIET)  # and then it was stopped
    first = read(path)
    measure(THIN, plan, 1, path, QUIET)
    rows = read(path)
    assert rows[:1] == first
    assert [(one["method"], one["ratio"]) for one in rows[1:]] == [
        ("toma-paper", "0.5"),
        ("todo", "0.75"),
        ("tomesd", "0.5"),
    ]
    monkeypatch.setattr(Case, "step", lambda *_: pytest.fail("there was nothing left to do"))
    measure(THIN, plan, 1, path, QUIET)
    assert read(path) == rows


def test_rows_compose_a_window_and_can_be_read_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thin_sd15(monkeypatch)
    measure(THIN, {"toma-paper": (0.5,), "tomesd": (0.5,)}, 1, tmp_path / "speed.csv", QUIET)
    toma, tomesd = read(tmp_path / "speed.csv")
    select, reweigh, plain, window = (
        float(toma[f"{part}_s"]) for part in ("selecting", "reweighing", "plain", "window")
    )
    assert window == pytest.approx(0.1 * select + 0.1 * reweigh + 0.8 * plain, abs=2e-4)
    assert float(toma["speed_up"]) == pytest.approx(float(toma["unmerged_s"]) / window, rel=0.05)
    assert (tomesd["selecting_s"], tomesd["plain_s"]) == (tomesd["window_s"], ""), "it selects at every step"
    assert all(toma[name] for name in (*environment(), "batch", "dtype", "size"))


def test_contenders_say_everything_that_defaults_might_change() -> None:
    toma = CONTENDERS["toma-paper"][0.5].method
    assert (toma.scope, toma.span, toma.skip, toma.levels) == ("level", "op", 0, None)
    assert CONTENDERS["toma-paper"][0.5].schedule == Schedule(destinations_every=10, weights_every=5)
    assert all(one.method.skip == 0 for known in CONTENDERS.values() for one in known.values())
    assert all(CONTENDERS[name][0.5].method.merge_feed_forward for name in ("tomesd", "tofu", "bound"))
    assert not CONTENDERS["tomesd-own"][0.5].method.merge_feed_forward
    assert [(ratio, one.ratio) for ratio, one in CONTENDERS["todo"].items()] == [(0.75, 0.75)]


def test_cases_by_name() -> None:
    assert parse_case("sdxl:512") == Case("sdxl", 512) == CASES[0]
    assert parse_case("flux:1024:1") == Case("flux", 1024, 1) == CASES[2]
    assert Case("flux", 1024, 1).title == "Flux.1-dev 1024², 1 block per stack"


def test_a_file_of_another_version_is_not_mixed_with_ours(tmp_path: Path) -> None:
    (tmp_path / "speed.csv").write_text("model,size\nsdxl,512\n", encoding="utf-8")
    with pytest.raises(FileError, match="move it away"):
        append(tmp_path / "speed.csv", {"model": "sdxl", "size": "512", "ratio": "0.5"})


def test_the_machine_is_noted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Hardware, "measure", lambda: MACHINE)
    for _ in range(2):
        note_machine(tmp_path / "hardware.csv")
    (noted,) = read(tmp_path / "hardware.csv")
    assert Hardware.from_row(noted).rate("matmul", torch.float32) == 1e12


# ---------------------------------------------------------------------------------------------- counting
@pytest.mark.slow
def test_what_is_timed_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thin_sd15(monkeypatch)
    monkeypatch.setattr(speed_counted, "ROOT", tmp_path)
    step = THIN.step("meta")
    monkeypatch.setattr(speed_counted, "_step", lambda _: step)
    known = {ratio: CONTENDERS["toma-paper"][ratio] for ratio in (0.25, 0.75)}
    monkeypatch.setattr(speed_counted, "CONTENDERS", {"toma-paper": known})
    monkeypatch.setattr(speed_counted, "RATIOS", (0.25, 0.75))
    keys = list(speed_counted.keys([THIN]))
    assert keys == [(THIN, BASELINE, 0.0), (THIN, "toma-paper", 0.25), (THIN, "toma-paper", 0.75)]
    found = {key: speed_counted.traced(key) for key in keys}
    rows = [speed_counted.row(key, own, found[keys[0]]) for key, own in found.items()] + speed_counted.limits(THIN)
    shares = [float(one["flop_share"]) for one in where(rows, method="toma-paper")]
    limits = [float(one["flop_share"]) for one in where(rows, method=LIMIT)]
    assert 1 > shares[0] > shares[1]
    assert all(limit <= share < limit + 0.05 for limit, share in zip(limits, shares, strict=True))
    assert all(float(one["peak_mib"]) >= float(one["block_peak_mib"]) > 0 for one in rows if one["peak_mib"])
    kept = sorted(tmp_path.rglob("*.json"))
    assert len(kept) == len(keys)
    monkeypatch.setattr(speed_counted, "window", lambda *_: pytest.fail("it was kept"))
    assert speed_counted.traced(keys[1]) == found[keys[1]], "kept, and read back"


# ---------------------------------------------------------------------------------------------- reading results
def made_up(speed_up: dict[str, float] | None = None) -> Results:
    """Every case timed in two rounds, the second 2 % slower in all; merging halves time at ratio 0.5."""
    own = {"toma-paper": 1.0, "bound": 1.01, "tomesd": 0.9, "tofu": 0.9, "toma": 0.97, **(speed_up or {})}
    timed, counted = [], []
    for case in CASES:
        counted.append(_counted(case, BASELINE, 0.0, 1.0, 100))
        counted += [_counted(case, LIMIT, ratio, 1 - ratio, 0) for ratio in RATIOS]
        for name, known in CONTENDERS.items():
            for ratio in known:
                seconds = (1 - ratio) / (0.98 * own.get(name, 0.5))
                parts = dict.fromkeys(("selecting", "reweighing", "plain", "window"), 10 * seconds)
                slow = {part: 1.02 * value for part, value in parts.items()}
                timed += [row(case, name, ratio, 0, parts, 10.0), row(case, name, ratio, 1, slow, 10.2)]
                counted.append(_counted(case, name, ratio, 1 - ratio, 60))
    return Results(timed, counted, [], [])


def _counted(case: Case, name: str, ratio: float, share: float, held: float) -> dict[str, str]:
    numbers = {"flop_share": share, "launches": 10, "peak_mib": 2 * held, "block_peak_mib": held}
    return {
        **case.columns,
        "method": name,
        "ratio": f"{ratio:g}",
        **{key: str(value) for key, value in numbers.items()},
    }


def test_promises_are_kept_by_a_library_that_keeps_them() -> None:
    found = promises(made_up(), [])
    assert len(found) > 40
    assert all(promise.kept for promise in found), [str(one) for one in found if not one.kept]


@pytest.mark.parametrize(
    ("slower", "expected"),
    [
        ({"toma-paper": 0.7}, "toma-paper on SDXL 1024² at 0.5: 1.372 ≥ 1.580: BROKEN"),
        ({"tomesd": 1.1}, "against ToMeSD, every op"),
    ],
)
def test_promises_that_are_broken_are_told(slower: dict[str, float], expected: str) -> None:
    broken = [str(promise) for promise in promises(made_up(slower), []) if not promise.kept]
    assert any(expected in line for line in broken), broken
    assert "≤ 0.500: BROKEN" in str(Promise("x", 0.6, 0.5, at_most=True))


def fake_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces as simple as the made-up results: ten seconds of products, less what merges away."""

    def traced(key: tuple[Case, str, float]) -> Window:
        _, name, ratio = key
        left = 1.0 if name == BASELINE else (1 - ratio) / 0.98
        ops = Counter({Op("matmul", torch.float32, round(1e13 * left), 0): 1})
        names = ("plain",) if name == BASELINE else ("selecting", "reweighing", "plain")
        shares = (1.0,) if name == BASELINE else (0.1, 0.1, 0.8)
        return Window({part: (share, Trace(Counter(ops))) for part, share in zip(names, shares, strict=True)})

    monkeypatch.setattr(speed_results, "traced", traced)


def test_constants_are_fitted_at_512_and_tried_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_traces(monkeypatch)
    results = made_up(dict.fromkeys(CONTENDERS, 1.0))
    assert fitted_machine(results, tmp_path) is None, "the machine was not noted"
    append(tmp_path / "hardware.csv", {**MACHINE.as_row(), **environment()})
    machine = fitted_machine(results, tmp_path)
    assert machine is not None
    assert machine.rate("matmul", torch.float32) == pytest.approx(1e12, rel=0.02)
    rows = predictions(results, predictor(machine))
    assert len(rows) == len(results.timed) / 2
    assert max(abs(float(one["error"])) for one in rows) < 0.01
    assert {one["size"] for one in rows if one["fitted_here"] == "true"} == {str(FITTED.size)}
    assert promises(results, [{**rows[0], "error": "-0.09"}])[-1].kept is False


def test_the_report_is_written_where_it_belongs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_traces(monkeypatch)
    results, folder = made_up(dict.fromkeys(CONTENDERS, 1.0)), tmp_path / "results"
    for name, rows in (("speed", results.timed), ("speed_counted", results.counted), ("guard", guarded())):
        for one in rows:
            append(folder / f"{name}.csv", one)
    append(folder / "hardware.csv", {**MACHINE.as_row(), **environment()})
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nFirst.\n", encoding="utf-8")
    arguments = ["--results", str(folder), "--page", str(page), "--images", str(tmp_path / "images")]
    speed_report.main(arguments)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Results\n\nFirst.\n\n## Speed\n")
    assert "| ToMA as in the paper | 1.31× (1.31) | 1.96× (1.96) | 3.92× (3.92) | 0.500 | 10 | 60 |" in text
    assert "| sd15 256² 0.5 | 1.25× | 1.25× | 90 of 100 |" in text
    speed_report.main(arguments)
    assert page.read_text(encoding="utf-8") == text, "a second time changes nothing"
    for name in ("speed_ratio.png", "speed_size.png"):
        assert min(Image.open(tmp_path / "images" / name).size) > 400
    assert len(read(folder / "speed_predicted.csv")) == len(results.timed) / 2


def test_a_report_of_nothing_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.speed first"):
        speed_report.main(["--results", str(tmp_path)])


# ---------------------------------------------------------------------------------------------- guard and compiler
def guarded(**changes: str) -> list[dict[str, str]]:
    plain = {"unmerged_s": "1.0", "everywhere_s": "0.8", "guarded_s": "0.8", "sites": "100", "merged_sites": "90"}
    return [{**Case("sd15", 256).columns, "ratio": "0.5", "round": "0", **plain, **changes, **environment()}]


def test_what_the_guard_promises() -> None:
    assert speed_guard.broken(guarded()) == []
    (slower,) = speed_guard.broken(guarded(guarded_s="1.04"))
    assert slower == "sd15 256² 0.5: guarded takes 1.040 times as long as unpatched"
    (idle,) = speed_guard.broken(guarded(merged_sites="80", guarded_s="0.9"))
    assert "1.25× as fast, and only 80% of the sites merge" in idle
    assert speed_guard.broken(guarded(everywhere_s="1.2", guarded_s="1.01", merged_sites="0")) == []


def test_the_guard_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thin_sd15(monkeypatch)
    monkeypatch.setattr(speed_guard, "RATIOS", (0.5,))
    path = tmp_path / "guard.csv"
    for _ in range(2):
        speed_guard.measure(THIN, 1, path, QUIET)
    (found,) = read(path)
    assert 0 <= int(found["merged_sites"]) <= int(found["sites"])
    assert float(found["guarded_s"]) > 0


@pytest.mark.slow
def test_compiled_and_eager_are_timed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    eager, quick = compiled.rows(THIN, 1, backend="eager")
    torch.compiler.reset()
    assert [eager["mode"], quick["mode"]] == ["eager", "compiled"]
    assert all(float(one["speed_up"]) > 0 for one in (eager, quick))


def test_compiled_blocks_are_held_against_the_eager_model() -> None:
    same = {"model": "flux", "size": "1024", "depth": "1", "ratio": "0.5"}
    eager = {**same, "mode": "eager", "unmerged_s": "2.0", "merged_s": "1.0", "speed_up": "2.0"}
    fast = {**same, "mode": "compiled", "unmerged_s": "1.5", "merged_s": "0.8", "speed_up": "1.875"}
    *_, last = speed_report.compiled_table([eager, fast]).splitlines()
    assert last == "| Flux.1-dev 1024², 1 block per stack, 0.5 | compiled | 1.50 | 0.80 | 1.88× | 2.50× |"


def test_the_quick_run_is_part_of_the_full_one() -> None:
    for name, ratios in speed.SHORT.items():
        assert set(ratios) <= set(CONTENDERS[name])
    given: Any = speed.arguments(["--quick"])
    assert given.quick


def test_a_guarded_patch_is_timed_at_every_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    thin_sd15(monkeypatch)
    step = THIN.step()

    def timed(step: Any, patch: Any) -> dict[str, float]:
        step.warm(patch)
        return {"window": 1.0}

    monkeypatch.setattr(speed_guard, "timed", timed)
    rows = [speed_guard.row(THIN, ratio, 0, step) for ratio in speed_guard.RATIOS]
    assert [row["ratio"] for row in rows] == ["0.1", "0.25", "0.5", "0.75"]
    assert all(int(row["sites"]) > 0 for row in rows)
