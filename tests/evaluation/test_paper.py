"""Tables, figures and pages of ``tomadiff paper`` out of what was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.synthetic_runs import NASTY, painted_run
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.paper.claims import Claim, Faster, Verdict
from tomadiff.evaluation.paper.experiments import TIME, Experiment, Grid
from tomadiff.evaluation.paper.outcomes import grid_of, measured_outcome, merging_outcome, timed_outcome, untested
from tomadiff.evaluation.paper.page import page
from tomadiff.evaluation.paper.text import markdown
from tomadiff.evaluation.paper.work import folder_of, variants_of
from tomadiff.evaluation.report.report import Figure, LoadedRun, load_runs
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.timing.merge_speed import PACKAGE, Timing

HALF, MOST = Variant.named("toma", 0.5), Variant.named("toma", 0.75)
EXPERIMENT = Experiment(
    1,
    "a question",
    (Variant(), HALF, MOST, Variant.named("todo", 0.75)),
    (
        Claim(f"more is faster {NASTY}", (Faster(MOST, HALF),)),
        Claim("default", (Faster(HALF, Variant()),), about_default=True),
    ),
    "Scaled.",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    prompts = [NASTY, *(f"lake {number}" for number in range(9))]
    run = painted_run(tmp_path_factory.mktemp("paper") / "sdxl", prompts, size=24)
    measure(run, networks={})
    return load_runs([run.folder])[0]


def test_a_table_of_images_has_the_rows_that_were_generated(loaded: LoadedRun) -> None:
    outcome = measured_outcome(EXPERIMENT, loaded, ["left out todo"])
    assert [[value for value, _ in row[:3]] for row in outcome.rows] == [
        ["in full", "0%", "10"], ["ToMA", "50%", "10"], ["ToMA", "75%", "10"],
    ]  # fmt: skip
    assert outcome.headings[-1] == "MSE ↓"  # of the pixel metrics, the one that the paper shows
    assert outcome.rows[1][-1][1].startswith("[")
    assert all(len(row) == len(outcome.headings) for row in outcome.rows)
    assert [one.verdict for one in outcome.judged] == [Verdict.HOLDS, Verdict.HOLDS]
    assert outcome.notes == ("Scaled.", "left out todo")


def test_a_figure_needs_all_of_its_columns(loaded: LoadedRun) -> None:
    assert grid_of(Grid(1, "", (HALF, Variant.named("todo", 0.75))), loaded) is None
    image = grid_of(Grid(1, "", (Variant(), HALF, MOST)), loaded)
    assert image is not None
    assert image.width > 3 * 100


def measured(variant: Variant, seconds: float) -> dict[str, Any]:
    times = {"seconds": [seconds] * 9, "seconds_min": seconds, "seconds_median": seconds, "speed_up": 2 / seconds}
    return {"method": variant.name, "title": variant.name, "ratio": variant.ratio, "flops": 1e12, **times}


def test_a_table_of_times_leaves_quality_untested() -> None:
    rows = [measured(Variant(), 2.0), measured(HALF, 1.5), measured(MOST, 1.0)]
    outcome = timed_outcome(EXPERIMENT, "SDXL at 1024²", rows)
    assert [row[0][0] for row in outcome.rows] == ["full", "toma", "toma"]
    assert outcome.judged[0].verdict is Verdict.HOLDS


def timings(own: float) -> list[Timing]:
    base = Timing(1024, 1280, 0.5, PACKAGE, "ToMeSD", "merge", 0.002, 0.002, 6)
    ours = [replace(base, method=name, title=name, best=own) for name in ("paper-tile", "paper-stripe")]
    return [replace(one, op=op) for one in (base, *ours) for op in ("merge", "unmerge")]


def test_merging_is_faster_or_it_is_not() -> None:
    fast, slow = merging_outcome(5, timings(0.001)), merging_outcome(5, timings(0.003))
    assert [value for value, _ in fast.rows[0]] == ["merge, 50%", "2.00 ms", "1.00 ms", "1.00 ms"]
    assert {one.verdict for one in fast.judged} == {Verdict.HOLDS}
    assert {one.verdict for one in slow.judged} == {Verdict.FAILS}
    assert "0.50 of ToMeSD" in fast.judged[0].findings[0].words


def test_text_and_page_say_everything_and_escape_it(loaded: LoadedRun) -> None:
    outcomes = [
        measured_outcome(EXPERIMENT, loaded),
        untested(TIME, "flux", "no weights"),
        merging_outcome(5, timings(1e-3)),
    ]
    image = grid_of(Grid(1, "", (Variant(), HALF)), loaded)
    assert image is not None
    text = markdown(outcomes, {"cpu": "a brush"})
    shown = page(outcomes, [Figure(f"Figure 1 {NASTY}", image)], {"Figure 5": None}, {"cpu": "a brush"})
    for form in (text, shown):
        assert "<script>" not in form
        assert "Table 1: a question (sdxl)" in form
        assert "Not made: no weights" in form
        assert "about 80 %" in form  # as published
        assert "✓" in form
    assert "7 in all: reproduces 3, not tested 4." in text  # those about the default are not counted
    assert json.loads(json.dumps(outcomes[0].as_json()))["judged"][1]["about_default"] is True


def test_what_several_tables_ask_for_is_generated_once() -> None:
    assert variants_of([EXPERIMENT, EXPERIMENT]) == list(EXPERIMENT.variants)


def test_a_run_is_named_after_its_model(tmp_path: Path) -> None:
    assert [folder_of(name) for name in ("sdxl", "owner/name", str(tmp_path))] == ["sdxl", "owner--name", tmp_path.name]
