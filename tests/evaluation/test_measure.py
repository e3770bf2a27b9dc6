"""A run of known images, measured: numbers, intervals, and what is missing."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from tests.evaluation.networks import Means, image, save_clip
from tomadiff.evaluation.metrics import distances
from tomadiff.evaluation.metrics.distances import METRICS, Metric, metric
from tomadiff.evaluation.metrics.features import NetworkUnavailable, to_pixels
from tomadiff.evaluation.metrics.measure import Sampling, measure
from tomadiff.evaluation.metrics.networks import Clip
from tomadiff.evaluation.metrics.samples import difference
from tomadiff.evaluation.metrics.table import Results
from tomadiff.evaluation.runs.record import Run, RunError, Sample

PROMPTS, SEEDS = ("a fox", "an owl | with a bar", "a pig"), (0, 1)
NOISE = {("full", 0.0): 0.0, ("toma", 0.25): 0.05, ("toma", 0.5): 0.2, ("tomesd", 0.5): 0.3}
QUICK = Sampling(resamples=200, set_resamples=10, batch=4)


class Squares:
    """Compares pixels, standing where LPIPS does."""

    def distances(self, images: Tensor, others: Tensor) -> Tensor:
        return (images - others).square().mean((1, 2, 3))


def unavailable() -> Means:
    raise NetworkUnavailable("inception cannot be had here: no torchvision.")


def generated(prompt: str, seed: int, noise: float) -> Image.Image:
    return image(10 * PROMPTS.index(prompt) + seed, (32, 32), noise)


def fill(run: Run, tasks: list[tuple[str, float, str, int]]) -> None:
    for method, ratio, prompt, seed in tasks:
        sample = Sample(method, ratio, prompt, seed, seconds=2 - ratio, flops=100 * (1 - ratio))
        run.add(sample, generated(prompt, seed, NOISE[method, ratio]))


QUESTIONS = [(method, ratio, prompt, seed) for method, ratio in NOISE for prompt in PROMPTS for seed in SEEDS]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.begin(tmp_path / "run", {"size": 32}, {})
    fill(run, QUESTIONS)
    return run


quick = partial(measure, networks={}, sampling=QUICK)


def test_pixels_are_measured_against_the_same_prompt_and_seed(run: Run) -> None:
    results = quick(run)
    assert [(row.method, row.ratio) for row in results.rows] == list(NOISE)
    row = results.row("toma", 0.5)
    ours, theirs = (
        to_pixels([generated(prompt, seed, noise) for prompt in PROMPTS for seed in SEEDS]) for noise in (0.2, 0.0)
    )
    for name in ("mse", "psnr", "ssim"):
        expected = getattr(distances, name)(ours, theirs).mean().item()
        assert row.metrics[name].value == pytest.approx(expected)
        assert row.metrics[name].low < expected < row.metrics[name].high
        assert row.metrics[name].count == 6
    assert (row.count, row.seconds, row.flops) == (6, 1.5, 50)
    assert results.row("full", 0).metrics == {}
    assert results.row("toma", 0.25).metrics["psnr"].low > results.row("tomesd", 0.5).metrics["psnr"].high


def test_every_network_gives_what_it_can(run: Run, tmp_path: Path) -> None:
    clip = Clip.open(str(save_clip(tmp_path / "clip")))
    networks = {"judge": lambda: clip, "mine": Means, "lpips": Squares, "inception": unavailable}
    results = measure(run, networks=networks, sampling=QUICK)
    assert results.missing == dict.fromkeys(("fid", "kid"), "inception cannot be had here: no torchvision.")
    judge = {"judge", "judge_t", "judge_fid", "judge_kid"}
    mine = {"mine", "mine_fid", "mine_kid"}  # it reads no text
    assert set(results.row("toma", 0.5).metrics) == {"mse", "psnr", "ssim", "lpips"} | judge | mine
    assert set(results.row("full", 0).metrics) == {"judge_t"}
    row = results.row("tomesd", 0.5)
    assert row.metrics["lpips"].value * 255**2 == pytest.approx(row.metrics["mse"].value, rel=1e-5)
    assert row.metrics["mine"].value > results.row("toma", 0.25).metrics["mine"].value > 0
    assert row.metrics["mine_fid"].value > results.row("toma", 0.25).metrics["mine_fid"].value > 0
    assert "inception cannot be had here" in results.markdown()


def test_numbers_of_each_image_go_into_the_run_once(run: Run) -> None:
    quick(run)
    lines = (run.folder / "results.jsonl").read_text().count("\n")
    quick(run)
    assert (run.folder / "results.jsonl").read_text().count("\n") == lines == len(QUESTIONS) + 18
    held = [sample for sample in run.samples().values() if sample.method == "toma"]
    assert all(set(sample.metrics) == {"mse", "psnr", "ssim"} for sample in held)
    apart = difference(run, "psnr", ("toma", 0.5), ("tomesd", 0.5))
    assert apart.low > 0
    with pytest.raises(RunError, match=r"no prompt and seed has lpips"):
        difference(run, "lpips", ("toma", 0.5), ("tomesd", 0.5))


def test_the_order_of_work_and_the_number_of_processes_do_not_matter(run: Run, tmp_path: Path) -> None:
    networks = {"mine": Means}
    expected = measure(run, networks=networks, sampling=QUICK)
    first = Run.begin(tmp_path / "shared", {}, {})
    fill(first, QUESTIONS[::-2])
    fill(Run.begin(tmp_path / "shared", {}, {}, process=1), QUESTIONS[::2])
    assert measure(first, networks=networks, sampling=QUICK) == expected


def test_batches_do_not_matter(run: Run) -> None:
    one, many = (
        measure(run, networks={"mine": Means}, sampling=Sampling(resamples=200, set_resamples=5, batch=batch))
        for batch in (1, 16)
    )
    for row, other in zip(one.rows, many.rows, strict=True):
        for name, interval in row.metrics.items():
            assert interval.value == pytest.approx(other.metrics[name].value, rel=1e-4, abs=1e-9)


def test_a_folder_of_images_is_compared_with_every_set(run: Run, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for seed in range(8):
        image(100 + seed, (40, 32)).save(tmp_path / "real" / f"{seed}.png")
    results = measure(run, networks={"mine": Means}, reference_images=tmp_path / "real", sampling=QUICK)
    assert set(results.row("full", 0).metrics) == {"mine_fid_reference", "mine_kid_reference"}
    assert "mine_fid_reference" in results.row("toma", 0.5).metrics
    with pytest.raises(RunError, match="holds no image"):
        measure(run, networks={"mine": Means}, reference_images=tmp_path / "run" / "nowhere", sampling=QUICK)


def test_the_summary_is_written_whole_and_read_again(run: Run) -> None:
    results = measure(run, networks={"mine": Means}, sampling=QUICK)
    assert Results.load(run.folder) == results
    assert json.loads((run.folder / "summary.json").read_text())["rows"][1]["metrics"]["psnr"]["count"] == 6
    assert not list(run.folder.glob(".summary*"))
    (run.folder / "summary.json").write_text("{")
    with pytest.raises(RunError, match=r"summary\.json, line 1: is not JSON"):
        Results.load(run.folder)


def test_equal_images_have_a_finite_psnr(tmp_path: Path) -> None:
    run = Run.begin(tmp_path, {}, {})
    for method in ("full", "toma"):
        run.add(Sample(method, 0.0, "a fox", 0), image(0))
    results = measure(run, networks={"mine": Means}, sampling=QUICK)
    assert results.row("toma", 0).metrics["psnr"].value == 100
    assert results.missing["mine_fid"].startswith("A set of images has at least two")


def test_images_too_small_for_ssim_are_measured_without_it(tmp_path: Path) -> None:
    run = Run.begin(tmp_path, {}, {})
    for method, noise in (("full", 0.0), ("toma", 0.1)):
        run.add(Sample(method, 0.0, "a fox", 0), image(0, (8, 8), noise))
    results = quick(run)
    assert set(results.row("toma", 0).metrics) == {"mse", "psnr"}
    assert "8×8" in results.missing["ssim"]


def test_whole_prompts_are_generated_again_where_there_are_enough(tmp_path: Path, run: Run) -> None:
    assert quick(run).resampled == "samples"
    many = Run.begin(tmp_path / "many", {}, {})
    for number in range(10):
        for method, noise in (("full", 0.0), ("toma", 0.1)):
            many.add(Sample(method, 0.0, f"prompt {number}", 0), image(number, noise=noise))
    assert quick(many).resampled == "prompts"


def test_an_unfinished_run_is_measured_as_far_as_it_goes(run: Run) -> None:
    shutil.rmtree(run.images)
    run.images.mkdir()
    with pytest.raises(RunError, match=r"0 ratios of 'full'.*holds nothing"):
        quick(run)
    fill(run, [*QUESTIONS[:6], *QUESTIONS[6:9]])
    assert quick(run).row("toma", 0.25).metrics["psnr"].count == 3
    with pytest.raises(RunError, match=r"holds 0 ratios of 'todo'.*full 0, toma 0.25"):
        quick(run, "todo")


def test_images_of_different_sizes_cannot_be_compared(run: Run) -> None:
    run.add(Sample("toma", 0.5, PROMPTS[0], 0), image(0, (40, 32)))
    with pytest.raises(RunError, match="differ in size"):
        quick(run)


# ---------------------------------------------------------------------------------------------- the table
def test_the_table_for_people(run: Run) -> None:
    results = quick(run)
    lines = results.markdown().splitlines()
    assert lines[0] == "| method | ratio | images | s | MSE ↓ | PSNR dB ↑ | SSIM ↑ |"
    assert lines[2] == "| full | 0 | 6 | 2.00 | – | – | – |"
    assert len(lines) == 6
    with pytest.raises(RunError, match=r"todo at ratio 0.5 was not measured; there are full 0, toma 0.25"):
        results.row("todo", 0.5)


def test_metrics_can_be_shown_even_if_nobody_described_them() -> None:
    assert metric("fid_reference").title == "FID (reference)"
    assert metric("fid_reference").about.endswith("the reference images")
    assert metric("mine") == Metric("mine", "lower", 4, "mine")
    assert all(known.better in ("higher", "lower") for known in METRICS.values())


def test_the_example_of_the_guide_runs(run: Run) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "adding" / "a_metric.md").read_text(encoding="utf-8")
    room: dict[str, Any] = {}
    exec(guide.split("```python\n")[1].split("```")[0], room)
    results = room["measure_with_edges"](run)
    assert {"edges", "edges_fid", "edges_kid"} <= set(results.row("toma", 0.5).metrics)


def test_networks_may_come_one_after_the_other(run: Run) -> None:
    """What was measured before stays, of images and of sets; new images make it old."""
    first = measure(run, networks={"mine": Means}, sampling=QUICK)
    both = measure(run, networks={"lpips": Squares, "inception": unavailable}, sampling=QUICK)
    row, before = both.row("toma", 0.5), first.row("toma", 0.5)
    assert set(row.metrics) == {*before.metrics, "lpips"}
    assert {name: row.metrics[name] for name in before.metrics} == dict(before.metrics)
    assert set(both.missing) == {"fid", "kid"}
    fill(run, [("toma", 0.5, "a fox", 2), ("full", 0.0, "a fox", 2)])
    grown = quick(run)
    assert set(grown.row("toma", 0.5).metrics) == {"mse", "psnr", "ssim"}
    assert set(grown.row("toma", 0.25).metrics) == {*before.metrics, "lpips"}
