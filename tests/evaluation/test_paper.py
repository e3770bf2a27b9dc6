"""Tables, figures and pages of ``tomadiff paper`` out of what was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.evaluation.networks import Means
from tests.evaluation.synthetic_runs import NASTY, painted_run
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.paper.claims import Claim, Faster, Verdict
from tomadiff.evaluation.paper.experiment import Experiment, Grid
from tomadiff.evaluation.paper.experiments import TIME
from tomadiff.evaluation.paper.figures import over_time, seen
from tomadiff.evaluation.paper.outcomes import grid_of, measured_outcome, merging_outcome, timed_outcome, untested
from tomadiff.evaluation.paper.page import page
from tomadiff.evaluation.paper.parts import by_steps, folder_of, kind_of_run, variants_of
from tomadiff.evaluation.paper.text import markdown
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


def test_speed_ups_are_ratios_of_minima(tmp_path: Path) -> None:
    """One disturbed image changes the mean of ratios, and not the ratio of the fastest."""
    run = painted_run(tmp_path, [f"lake {number}" for number in range(9)], size=24)
    disturbed = next(one for one in run.samples().values() if (one.method, one.ratio) == ("toma", 0.5))
    run.append(replace(disturbed, seconds=30.0))
    measure(run, networks={})
    outcome = measured_outcome(EXPERIMENT, load_runs([run.folder])[0])
    assert outcome.headings[3:6] == ("least s", "speed-up", "paired")
    assert [value for value, _ in outcome.rows[0][3:6]] == ["2", "1.00×", "–"]
    least, best, paired = (value for value, _ in outcome.rows[1][3:6])
    assert (least, best) == ("1.5", "1.33×")
    assert float(paired.removesuffix("×")) < 1.2


def test_a_reference_set_has_columns_of_its_own(tmp_path: Path) -> None:
    run = painted_run(tmp_path / "run", [f"lake {number}" for number in range(9)], size=32)
    measure(run, networks={"inception": Means}, reference_images=painted_run(tmp_path / "other", size=32).images)
    outcome = measured_outcome(EXPERIMENT, load_runs([run.folder])[0])
    assert outcome.headings[-2:] == ("FID ↓", "FID (reference) ↓")
    assert outcome.rows[0][-2][0] == "–"  # the unmerged set is not compared with itself
    assert outcome.rows[0][-1][0] != "–"  # but with the reference it is


def test_a_table_of_steps_has_a_folder_of_its_own() -> None:
    fifty = replace(EXPERIMENT, steps=50)
    usual, paper = by_steps([EXPERIMENT, fifty, EXPERIMENT], {"num_inference_steps": 20}, None)
    assert (usual[0]["num_inference_steps"], usual[1]) == (20, [EXPERIMENT, EXPERIMENT])
    assert (paper[0]["num_inference_steps"], paper[1]) == (50, [fifty])
    assert len(by_steps([EXPERIMENT, fifty], {"num_inference_steps": 4}, 4)) == 1  # --steps is for all
    assert len(by_steps([EXPERIMENT, fifty], {"num_inference_steps": 50}, None)) == 1
    assert folder_of("owner/name", 50) == "owner--name-50-steps"


def test_a_stored_run_tells_its_kind() -> None:
    assert kind_of_run({("full", 0.0), ("paper-whole", 0.5)}) == "unet"
    assert kind_of_run({("full", 0.0), ("paper-tile", 0.25), ("toma-default", 0.5)}) == "transformer"


def test_figures_are_made_once(tmp_path: Path) -> None:
    assert seen(tmp_path, ["overlap"], None) == {}
    made = Figure("Overlap", Image.new("RGB", (8, 8)), "A note.")
    save = {"overlap": made}
    kept = seen(tmp_path, ["overlap"], lambda: ("title", save))
    again = seen(tmp_path, ["overlap"], lambda: pytest.fail("looked again"))
    assert kept["overlap"].note == again["overlap"].note == "title. A note."


def test_quality_over_time_has_a_chart_for_each_metric(loaded: LoadedRun) -> None:
    one, two = over_time(loaded, ["mse"]), over_time(loaded, ["mse", "psnr"])
    assert one is not None
    assert two is not None
    assert two.image.height > 1.5 * one.image.height
    assert over_time(loaded, ["dino"]) is None


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
    whole = replace(base, method="paper-whole", title="paper-whole", best=0.004)
    return [replace(one, op=op) for one in (base, *ours, whole) for op in ("merge", "unmerge")]


def test_merging_is_faster_or_it_is_not() -> None:
    fast, slow = merging_outcome(5, timings(0.001)), merging_outcome(5, timings(0.003))
    assert fast.headings[-1] == "paper-whole, as fast as ToMeSD"
    assert [value for value, _ in fast.rows[0]] == [
        "merge, 50%", "2.00 ms", "1.00 ms", "1.00 ms", "4.00 ms", "2.00×", "2.00×", "0.50×",
    ]  # fmt: skip
    whole = [one.verdict for one in fast.judged if "whole grid" in one.claim.text]
    assert whole == [Verdict.FAILS, Verdict.FAILS]  # it is told, and spoils no other claim
    assert [one.verdict for one in fast.judged].count(Verdict.HOLDS) == 2
    assert {one.verdict for one in slow.judged} == {Verdict.FAILS}
    assert "2.00 times as fast as ToMeSD" in fast.judged[0].findings[0].words


def test_text_and_page_say_everything_and_escape_it(loaded: LoadedRun) -> None:
    outcomes = [
        measured_outcome(EXPERIMENT, loaded),
        untested(TIME, "flux", "no weights"),
        merging_outcome(5, timings(1e-3)),
    ]
    image = grid_of(Grid(1, "", (Variant(), HALF)), loaded)
    assert image is not None
    text = markdown(outcomes, {"cpu": "a brush"}, {"figure-1.png": Figure(f"Figure 1 {NASTY}", image, "Seen.")})
    shown = page(outcomes, [Figure(f"Figure 1 {NASTY}", image)], {"Figure 5": None}, {"cpu": "a brush"})
    for form in (text, shown):
        assert "<script>" not in form
        assert "Table 1: a question (sdxl)" in form
        assert "Not made: no weights" in form
        assert "about 80 %" in form  # as published
        assert "✓" in form
    assert "](figure-1.png)\n\nSeen." in text
    assert "ratios of minima" in text
    assert (
        "9 in all: reproduces 3, does not reproduce 2, not tested 4." in text
    )  # those about the default are not counted
    assert json.loads(json.dumps(outcomes[0].as_json()))["judged"][1]["about_default"] is True


def test_what_several_tables_ask_for_is_generated_once() -> None:
    assert variants_of([EXPERIMENT, EXPERIMENT]) == list(EXPERIMENT.variants)


def test_a_run_is_named_after_its_model(tmp_path: Path) -> None:
    assert [folder_of(name) for name in ("sdxl", "owner/name", str(tmp_path))] == ["sdxl", "owner--name", tmp_path.name]
