"""The fidelity benchmark on made-up images and tiny pipelines: what is generated, skipped, compared and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks import fidelity, fidelity_images, fidelity_report, pareto
from benchmarks.caches import (
    DeepCache,
    FirstBlockCache,
    MagCache,
    PyramidAttention,
    Repeat,
    SeaCache,
    TaylorSeer,
)
from benchmarks.candidates import EVERY_STEP, RATIOS, SAME_COST, SETS, TUNING, Bench, digest, known, within
from benchmarks.fidelity import PROMISED_PAIRS, Row, done, pairs_of, path_of
from benchmarks.fidelity_report import BEGIN, END
from benchmarks.fidelity_results import Demand, Measured, Results, demands, told
from tests import tiny
from tests.tiny import Tiny
from tomadiff import Schedule, ToMA
from tomadiff.cost import flop_counter
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.rows import append, read
from tomadiff.evaluation.runs.variants import Around, Variant
from tomadiff.evaluation.tune.trials import Trials


def cost(candidate: Variant) -> float:
    """A model of which four tenths merge, and planning costs a hundredth."""
    start = candidate.schedule.start if isinstance(candidate.schedule.start, float) else 0.0
    steps = None if candidate.forecast is None else candidate.forecast.steps
    return (1 - (1 - start) * (0.4 * candidate.ratio - 0.01)) * (1.0 if steps is None else len(steps) / 20)


def bench(model: str = "emoji-sdxl", steps: int = 20) -> Bench:
    return Bench(model, steps, cost)


# ---------------------------------------------------------------------------------------------- candidates
@pytest.mark.parametrize("model", ["emoji-sdxl", "emoji-flux"])
@pytest.mark.parametrize("steps", [4, 20])
def test_a_name_means_the_same_settings_in_every_set(model: str, steps: int) -> None:
    found: dict[str, str] = {}
    for make in SETS.values():
        for one in make(bench(model, steps)):
            assert found.setdefault(one.name, digest(one)) == digest(one), one.name
    assert found.items() <= known(model, steps).items()


def test_other_settings_are_another_candidate() -> None:
    same = [Variant.of("x", ToMA(0.5), EVERY_STEP) for _ in range(2)]
    others = [
        Variant.of("x", ToMA(0.5, scope="level"), EVERY_STEP),
        Variant.of("x", ToMA(0.5), Schedule(1, 1, start=0.1)),
        Variant("x 0.50", ToMA(0.5), EVERY_STEP, DeepCache(2)),
        Variant("x 0.50", ToMA(0.5), EVERY_STEP, DeepCache(3)),
    ]
    assert digest(same[0]) == digest(same[1])
    assert len({digest(one) for one in (*same, *others)}) == 5


def test_a_setting_that_is_new_and_off_leaves_candidates_as_they_were() -> None:
    @dataclass(frozen=True)
    class Later(ToMA):
        new: bool = False

    Later.__name__ = "ToMA"
    old = Variant.of("x", ToMA(0.5), EVERY_STEP)
    off, on = (replace(old, method=Later(0.5, new=new)) for new in (False, True))
    assert digest(off) == digest(old) != digest(on)


@pytest.mark.parametrize("tuning", [False, True])
@pytest.mark.parametrize("model", fidelity_report.MODELS)
def test_stored_rows_are_of_settings_that_there_are(model: str, tuning: bool) -> None:
    """Else a change of the package has changed digests, and all of these images would have to be generated again."""
    assert {
        found.steps: found.outdated for found in Results.read(fidelity.RESULTS, model, tuning) if found.outdated
    } == {}


def test_ours_spends_a_budget_and_no_more() -> None:
    for budget in (0.95, 0.9, 0.8, 0.7, 0.66):
        own = within(budget, cost, "emoji-flux")
        assert own is not None
        assert budget - 0.05 < cost(own) <= budget + SAME_COST
    assert within(0.5, cost, "emoji-flux") is None


def test_ours_meets_everyone_at_their_cost() -> None:
    costs = [cost(one) for one in SETS["matched"](bench())]
    for rival in (*SETS["paper"](bench()), *SETS["baselines"](bench())):
        assert any(cost(rival) - 0.05 < own <= cost(rival) + SAME_COST for own in costs), rival.name


# ---------------------------------------------------------------------------------------------- caches
CACHES = [
    ("sdxl", DeepCache(2)),
    ("flux", FirstBlockCache(0.5)),
    ("flux", TaylorSeer(3, before=2)),
    ("flux", TaylorSeer(3, before=2, lite=False)),
    ("flux", MagCache(4, 0.5, 0.25, ratios=(1.0, 1.01, 1.0, 1.0))),
    ("flux", SeaCache(10.0)),
    ("flux", PyramidAttention(2, 1001, -1)),
    ("flux", Repeat(2)),
    ("sdxl", PyramidAttention(2, 1001, -1)),
    ("sdxl", Repeat(2)),
]
UNMERGED = Variant("nothing", ToMA(0.0), EVERY_STEP)


def generated(drawer: Tiny, candidate: Variant | None = None) -> tuple[bytes, int]:
    """An image of four steps and its FLOPs."""
    drawer.pipe.set_progress_bar_config(disable=True)
    trials = Trials(drawer.pipe, {**drawer.settings, "num_inference_steps": 4})
    with flop_counter() as counter:
        (image,) = trials.generate([(Prompt("a fox"), 0)], candidate)
    return image.tobytes(), int(counter.get_total_flops())


@pytest.fixture(scope="module")
def drawer_of() -> Callable[[str], tuple[Tiny, tuple[bytes, int]]]:
    """A tiny pipeline and its unmerged image, made once."""

    @cache
    def made(name: str) -> tuple[Tiny, tuple[bytes, int]]:
        drawer = tiny.build(name)
        return drawer, generated(drawer)

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cached"), CACHES, ids=[str(cached) for _, cached in CACHES])
def test_caches_save_operations_with_and_without_merging_and_come_off_again(
    drawer_of: Callable[[str], tuple[Tiny, tuple[bytes, int]]], name: str, cached: Around
) -> None:
    drawer, plain = drawer_of(name)
    alone = generated(drawer, replace(UNMERGED, around=cached))
    both = generated(drawer, Variant("both", ToMA(0.5), EVERY_STEP, cached))
    assert both[1] < 0.95 * alone[1] < 0.9 * plain[1]
    assert len({plain[0], alone[0], both[0]}) == 3
    assert generated(drawer) == plain
    if isinstance(cached, DeepCache):  # hooks of diffusers leave the method as an attribute
        assert not [module for module in drawer.model.modules() if "forward" in module.__dict__]


def test_extrapolated_attention_does_not_fit_tokens_that_merge_later() -> None:
    """Why TaylorSeer is compared in its lite mode; the guide says so."""
    late = Schedule(1, 1, start=0.5)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        generated(tiny.build("flux"), Variant("late", ToMA(0.5), late, TaylorSeer(3, before=2, lite=False)))


# ---------------------------------------------------------------------------------------------- generating
class Counting(Trials):
    """Images of one colour, and how many were asked for."""

    def __init__(self) -> None:
        super().__init__(None, {"height": 8})
        self.pipe = type("Pipe", (), {"dtype": torch.float32})()
        self.asked: list[str] = []

    def generate(self, pairs: Sequence[Any], candidate: Variant | None = None) -> list[Image.Image]:
        self.asked += [candidate.name if candidate else "unmerged"] * len(pairs)
        return [Image.new("RGB", (16, 16), (100 + seed, 10, 200 if candidate else 190)) for _, seed in pairs]

    def cost(self, pair: Any, candidate: Variant) -> float:
        return cost(candidate)

    def compare(self, pairs: Sequence[Any], candidate: Variant) -> list[dict[str, float]]:
        return [{**one, "judge": 0.1} for one in super().compare(pairs, candidate)]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(fidelity, "trials_of", lambda *_: made)
    monkeypatch.setattr(fidelity_images, "trials_of", lambda *_: made)
    return made


def test_a_stopped_run_goes_on_where_it_was(trials: Counting, tmp_path: Path) -> None:
    fidelity.run("emoji-sdxl", ["paper"], 2, 20, tmp_path)
    first = read(path_of(tmp_path, "emoji-sdxl"))
    assert len(first) == 2 * len(RATIOS)
    trials.asked.clear()
    fidelity.run("emoji-sdxl", ["paper"], 2, 20, tmp_path)
    assert not trials.asked
    fidelity.run("emoji-sdxl", ["paper"], 5, 20, tmp_path)
    rows = read(path_of(tmp_path, "emoji-sdxl"))
    assert rows[: len(first)] == first
    assert len(rows) == 5 * len(RATIOS)
    assert len(done(path_of(tmp_path, "emoji-sdxl"))) == len(rows), "nothing is written twice"
    assert [run["pairs"] for run in read(tmp_path / fidelity.RUNS)] == ["2", "2", "5"]


def test_changed_settings_are_generated_again(
    trials: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fidelity.run("emoji-sdxl", ["paper"], 1, 20, tmp_path)
    monkeypatch.setattr(ToMA, "paper", classmethod(lambda cls, ratio=0.5: cls(ratio, selector="facility_location")))
    fidelity.run("emoji-sdxl", ["paper"], 1, 20, tmp_path)
    (results,) = Results.read(tmp_path, "emoji-sdxl")
    assert results.outdated == 3
    assert len(results.measured["toma-paper 0.50"].images) == 1


def test_settings_are_chosen_by_other_images(trials: Counting, tmp_path: Path) -> None:
    fidelity.run("emoji-sdxl", ["windows"], 2, 20, tmp_path)
    chosen = {(row["prompt"], int(row["seed"])) for row in read(path_of(tmp_path, "emoji-sdxl", tuning=True))}
    assert len(chosen) == 2
    assert chosen.isdisjoint((prompt.text, seed) for prompt, seed in pairs_of(PROMISED_PAIRS))
    with pytest.raises(SystemExit):
        fidelity.main(["emoji-sdxl", "knobs", "paper", "--results", str(tmp_path)])


def test_the_grid_has_a_column_for_each_method(trials: Counting, tmp_path: Path) -> None:
    image = fidelity_images.grid("emoji-sdxl", 2, 20)
    assert len(trials.asked) == 2 * len(fidelity_images.columns())
    assert list(fidelity_images.columns())[:4] == ["unmerged", "ToMA .25", "ToMA .5", "ToMA .75"]
    assert image.width > 8 * 200


# ---------------------------------------------------------------------------------------------- reading
def made_up(folder: Path, pairs: int = 100, steps: int = 20, sets: Sequence[str] = tuple(SETS), **worse: float) -> None:
    """Errors that follow from the cost; the default's a third, baselines' twice as large, some are ``worse`` still."""
    own = torch.Generator().manual_seed(0)
    hardness = torch.rand(pairs, generator=own) + 0.5
    wanted = {(one.name, name in TUNING): one for name in sets for one in SETS[name](bench(steps=steps))}
    for (name, tuning), one in wanted.items():
        first = name.split()[0].strip(",")
        scale = {"toma": 30, "toma-paper": 100}.get(first, 200) * worse.get(first, 1.0)
        error = scale * (1 - cost(one) + 0.05) * hardness
        rows = [
            Row("emoji-sdxl", steps, name, digest(one), prompt.text, seed, round(cost(one), 4), float(e), 30 - e / 10,
                0.9, float(e) / 1000)
            for (prompt, seed), e in zip(pairs_of(pairs, PROMISED_PAIRS * tuning), error.tolist(), strict=True)
        ]  # fmt: skip
        append(path_of(folder, "emoji-sdxl", tuning), *map(asdict, rows))


def test_what_must_hold_does_if_it_does(tmp_path: Path) -> None:
    made_up(tmp_path)
    (results,) = Results.read(tmp_path, "emoji-sdxl")
    found = list(demands(results))
    assert len(found) == 3 + 13
    assert [one.verdict for one in found] == ["held"] * len(found), [(one.text, one.verdict) for one in found]
    for demand in found:
        assert demand.own is not None
        assert demand.rival is not None
        assert demand.own.cost <= demand.rival.cost + 1e-3


def test_what_is_missed_is_told(tmp_path: Path) -> None:
    made_up(tmp_path, sets=("paper", "matched"), toma=2.0)
    (results,) = Results.read(tmp_path, "emoji-sdxl")
    verdicts = {one.text: one.verdict for one in demands(results)}
    assert verdicts["the paper's cost at 0.5"] == "**missed**"
    assert "**missed**" in fidelity_report.section(tmp_path)


def test_nearer_at_more_operations_is_missed_too() -> None:
    images = {(str(number), "0"): {"mse": "1.0", "judge": "1.0"} for number in range(100)}
    cheap, dear = Measured("cheap", 0.5, images), Measured("dear", 0.6, images)
    assert Demand("", cheap, dear, 1.0).verdict == "held"
    assert Demand("", dear, cheap, 1.0).verdict == "**missed**"
    assert Demand("", dear, None, 1.0).verdict == "not generated yet"


def test_few_pairs_say_little(tmp_path: Path) -> None:
    made_up(tmp_path, pairs=5)
    (results,) = Results.read(tmp_path, "emoji-sdxl")
    assert all(one.verdict == "too few pairs, 5 so far" for one in demands(results))
    base = results.measured["toma-paper 0.50"]
    assert told(results.measured["toma-paper, random destinations 0.50"].over(base, "mse")) == "too few pairs"


def test_with_few_steps_only_what_was_generated_is_asked_for(tmp_path: Path) -> None:
    made_up(tmp_path, steps=4, sets=("paper", "matched", "caches"))
    (results,) = Results.read(tmp_path, "emoji-sdxl")
    assert [one.most for one in demands(results)] == [0.5] * 3


# ---------------------------------------------------------------------------------------------- writing
def test_a_page_without_results_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n", encoding="utf-8")
    fidelity_report.main(["--results", str(tmp_path), "--page", str(page)])
    assert "emoji-sdxl: nothing generated yet" in page.read_text(encoding="utf-8")
    pareto.main(["--results", str(tmp_path), "--out", str(tmp_path / "pareto.png")])
    assert "nothing to show" in capsys.readouterr().out
    assert not (tmp_path / "pareto.png").exists()


def test_half_a_run_says_what_is_missing(tmp_path: Path) -> None:
    made_up(tmp_path, pairs=12, sets=("paper", "selectors"))
    text = fidelity_report.section(tmp_path)
    assert "`baselines` (0 of 7 settings)" in text
    assert "`toma`" in text
    assert "| the paper's cost at 0.5 | – | toma-paper 0.50 (.810) |" in text
    assert "| … random destinations | 0.5 | .810 |" in text


def test_a_whole_run_fills_every_table_and_the_image(tmp_path: Path) -> None:
    made_up(tmp_path, pairs=12)
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nbefore\n", encoding="utf-8")
    for _ in range(2):
        fidelity_report.main(["--results", str(tmp_path), "--page", str(page)])
    text = page.read_text(encoding="utf-8")
    assert (text.count(BEGIN), text.count(END), text.count("before")) == (1, 1, 1)
    assert "Not generated yet" not in text
    for one in (*SETS["knobs"](bench()), *SETS["caches"](bench())):
        assert f"| {one.name} |" in text
    pareto.main(["--results", str(tmp_path), "--out", str(tmp_path / "pareto.png")])
    with Image.open(tmp_path / "pareto.png") as image:
        assert image.height > image.width


def test_lines_of_caches_show_their_front() -> None:
    points = ((0.3, 9.0), (0.5, 6.0), (0.5, 4.0), (0.7, 5.0), (0.8, 1.0))
    found = [Measured(f"{cost} {error}", cost, {("", "0"): {"judge": str(error)}}) for cost, error in points]
    assert [one.name for one in pareto.front(found, "judge")] == ["0.3 9.0", "0.5 4.0", "0.8 1.0"]
