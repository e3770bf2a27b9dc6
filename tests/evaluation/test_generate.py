"""Images of a run: a fixed order, the same image whatever came before, nothing lost to a kill."""

import errno
import os
import random
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tiny import Tiny, build
from tomadiff.engine.model import MARK
from tomadiff.errors import SettingError, UnsupportedModelError
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.runs import generate, models
from tomadiff.evaluation.runs import tasks as tasks_module
from tomadiff.evaluation.runs.generate import generate_batch, generate_image
from tomadiff.evaluation.runs.processes import ProcessGroup
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.record import Run, note_of
from tomadiff.evaluation.runs.tasks import run_tasks, tasks
from tomadiff.evaluation.runs.variants import Variant, require_supported, variants

CALL = {"num_inference_steps": 2, "height": 64, "width": 64}
ABOUT = {"model": "tiny"}


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    made = build("sdxl")
    made.pipe.set_progress_bar_config(disable=True)
    return made


def begin(folder: Path) -> Run:
    return Run.begin(folder, {"model": "tiny"}, {})


def pixels(image: Image.Image) -> Any:
    return np.asarray(image)


def counted(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of the pipeline generates; warm-ups left out."""
    generated: list[int] = []
    real = tasks_module.generate_batch

    def counting(pipe: Any, prompts: Any, seeds: Any, call: Any) -> Any:
        generated.append(len(prompts))
        return real(pipe, prompts, seeds, call)

    monkeypatch.setattr(tasks_module, "generate_batch", counting)
    monkeypatch.setattr(tasks_module, "warm_up", lambda *_: None)
    return generated


# ---------------------------------------------------------------------------------------------- what to generate
def test_in_full_comes_first_and_nothing_twice() -> None:
    wanted = variants(["toma", "full", "todo"], [0.25, 0.5, 0.5])
    assert wanted[:3] == [Variant(), Variant.named("toma", 0.25), Variant.named("toma", 0.5)]
    assert [variant.entry for variant in wanted[3:]] == ["todo"]


def test_forecasts_are_variants_with_names_of_their_own() -> None:
    wanted = variants(["full", "toma"], [0.5], [0.0, 0.05])
    assert [one.name for one in wanted] == ["full", "forecast-0.05", "toma", "toma+forecast-0.05"]
    assert wanted[1].method is None
    assert (wanted[2].method, wanted[2].schedule) == (wanted[3].method, wanted[3].schedule)


def test_bad_methods_and_ratios_are_refused_before_any_work() -> None:
    with pytest.raises(SettingError, match="tomesd"):
        variants(["tomasd"], [0.5])
    with pytest.raises(SettingError, match=r"ratio=1\.5"):
        variants(["toma"], [1.5])
    with pytest.raises(SettingError, match="nothing to generate"):
        tasks([], [0], variants(["toma"], [0.5]))


def test_tasks_follow_from_what_is_wanted_alone() -> None:
    wanted = variants(["toma"], [0.5])
    batches = tasks(["a fox", "a cat", "a fox"], [0, 1, 1], wanted, batch=3)
    assert batches == tasks(["a fox", "a cat"], [0, 1], wanted, batch=3)
    assert [len(batch) for batch in batches] == [3, 3, 1, 1]
    assert [batch[0].variant.name for batch in batches] == ["full", "toma"] * 2
    keys = [task.key for batch in batches for task in batch]
    assert len(set(keys)) == len(keys) == 8


def test_a_negative_prompt_makes_another_task() -> None:
    plain, barred = tasks([Prompt("a fox"), Prompt("a fox", "snow")], [0], [Variant()])
    assert plain[0].key != barred[0].key


# ---------------------------------------------------------------------------------------------- how to generate
def test_a_seed_gives_its_image_whatever_was_generated_before(tiny: Tiny) -> None:
    first = generate_image(tiny.pipe, "a fox", 3, CALL)
    with Variant.named("toma", 0.5).on(tiny.pipe):
        merged = generate_image(tiny.pipe, "a fox", 3, CALL)
    other = generate_image(tiny.pipe, "a fox", 4, CALL)
    assert np.array_equal(pixels(first), pixels(generate_image(tiny.pipe, "a fox", 3, CALL)))
    assert not np.array_equal(pixels(first), pixels(merged))
    assert not np.array_equal(pixels(first), pixels(other))


def test_a_negative_prompt_counts(tiny: Tiny) -> None:
    plain, barred = (generate_image(tiny.pipe, Prompt("a fox", negative), 0, CALL) for negative in ("", "snow"))
    assert not np.array_equal(pixels(plain), pixels(barred))


def test_merging_comes_off_when_generating_fails(tiny: Tiny) -> None:
    before = {name: module.forward for name, module in tiny.pipe.unet.named_modules()}
    with pytest.raises(Exception, match="divisible"), Variant.named("toma", 0.5).on(tiny.pipe):
        generate_image(tiny.pipe, "a fox", 0, {**CALL, "height": 63})
    assert {name: module.forward for name, module in tiny.pipe.unet.named_modules()} == before


def test_a_call_is_completed_and_checked(tiny: Tiny) -> None:
    call = generate.call_of("somewhere", tiny.pipe, size=(64, 32))
    assert call == {"width": 64, "height": 32, "num_inference_steps": 50, "guidance_scale": 5.0}
    assert generate.call_of("somewhere", tiny.pipe, steps=4)["num_inference_steps"] == 4
    with pytest.raises(SettingError, match="steps=0"):
        generate.call_of("somewhere", tiny.pipe, steps=0)


def test_a_method_that_does_not_fit_is_refused_before_the_first_image() -> None:
    with pytest.raises(UnsupportedModelError, match="ToDo does not work on"):
        require_supported(build("wan").pipe, variants(["toma", "todo"], [0.5]))


def test_a_pipeline_of_videos_is_refused() -> None:
    tiny = build("wan")
    with pytest.raises(UnsupportedModelError, match="single images"):
        generate_image(tiny.pipe, "a fox", 0, {**tiny.settings, "num_inference_steps": 1})


# ---------------------------------------------------------------------------------------------- run
def test_an_image_says_how_to_generate_it_again(tiny: Tiny, tmp_path: Path) -> None:
    run = begin(tmp_path)
    about = models.describe("tiny", tiny.pipe)
    run_tasks(tiny.pipe, run, tasks(["a fox", "a <script>"], [0], variants(["toma"], [0.5]), batch=2), CALL, about)
    for key in run.samples():
        note = note_of(run.image_path(key))
        prompts = [Prompt(text, negative) for text, negative, _ in note["together"]]
        seeds = [seed for *_, seed in note["together"]]
        merges = note["method"] != "full"
        with Variant.named(note["method"], note["ratio"]).on(tiny.pipe) if merges else nullcontext():
            again, _ = generate_batch(tiny.pipe, prompts, seeds, note["call"])
        place = [prompt.text for prompt in prompts].index(note["prompt"])
        assert np.array_equal(pixels(again[place]), pixels(run.image(key)))
        assert note["pipeline"] == "StableDiffusionXLPipeline"
        assert {"torch", "diffusers", "tomadiff"} <= note["versions"].keys()
        assert ("settings" in note, "schedule" in note) == (note["method"] == "toma",) * 2


def test_going_on_generates_only_what_is_missing(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, batches = begin(tmp_path), tasks(["a fox", "a cat"], [0], variants(["toma"], [0.5]))
    run_tasks(tiny.pipe, run, batches[:2], CALL, ABOUT)
    before = run.samples()
    generated = counted(tiny.pipe, monkeypatch)
    told: list[int] = []
    run_tasks(tiny.pipe, begin(tmp_path), batches, CALL, ABOUT, told.append)
    assert len(generated) == len(told) == 2
    run_tasks(tiny.pipe, begin(tmp_path), batches, CALL, ABOUT, told.append)
    assert len(generated) == len(told) == 2
    assert {key: run.samples()[key] for key in before} == before


def test_a_batch_cut_short_is_generated_whole_and_recorded_once(tiny: Tiny, tmp_path: Path) -> None:
    batches = tasks(["a fox", "a cat", "an owl"], [0], [Variant()], batch=3)
    whole, cut = begin(tmp_path / "whole"), begin(tmp_path / "cut")
    for run in (whole, cut):
        run_tasks(tiny.pipe, run, batches, CALL, ABOUT)
    lines = (cut.folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    (cut.folder / "results.jsonl").write_bytes(lines[0] + lines[1][:20])
    kept = dict(cut.samples())
    assert len(kept) == 1
    run_tasks(tiny.pipe, cut, batches, CALL, ABOUT)
    assert kept.items() <= cut.samples().items()
    assert_equal_runs(whole, cut)


def test_a_full_disk_keeps_what_was_done(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, batches = begin(tmp_path), tasks(["a fox", "a cat"], [0], [Variant()])
    real = os.fsync

    def sync(file: int) -> None:
        if len(run.samples()) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="No space"):
        run_tasks(tiny.pipe, run, batches, CALL, ABOUT)
    assert len(run.samples()) == len(list(run.images.iterdir())) == 1
    monkeypatch.undo()
    run_tasks(tiny.pipe, run, batches, CALL, ABOUT)
    assert len(run.samples()) == 2


def test_a_batch_that_fails_is_reported_and_the_rest_goes_on(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, batches = begin(tmp_path), tasks(["a fox", "a cat"], [0], variants(["toma-paper"], [0.5]))
    real = tasks_module.generate_batch

    def breaks(pipe: Any, prompts: Any, seeds: Any, call: Any) -> Any:
        if MARK in pipe.unet.__dict__ and prompts[0].text == "a fox":
            raise torch.linalg.LinAlgError("did not converge")
        return real(pipe, prompts, seeds, call)

    monkeypatch.setattr(tasks_module, "generate_batch", breaks)
    failures = ProcessGroup("cpu").run_tasks(tiny.pipe, run, batches, CALL, ABOUT, shown=False)
    assert failures.lines == ["toma-paper 50%, 'a fox', seed 0 failed: did not converge"]
    assert len(run.samples()) == 3
    with pytest.raises(torch.linalg.LinAlgError):  # where nobody writes failures down
        run_tasks(tiny.pipe, run, batches, CALL, ABOUT)
    monkeypatch.undo()
    assert not ProcessGroup("cpu").run_tasks(tiny.pipe, run, batches, CALL, ABOUT, shown=False)
    assert len(run.samples()) == 4


def test_one_process_has_all_the_work(tiny: Tiny, tmp_path: Path) -> None:
    group = ProcessGroup("cpu")
    run, batches = group.begin(tmp_path, {}, {}), tasks(["a fox", "a cat"], [0], [Variant()])
    assert (group.leads, group.size, group.device) == (True, 1, None)
    assert group.share(batches, run) == batches
    run_tasks(tiny.pipe, run, batches[:1], CALL, ABOUT)
    assert group.share(batches, run) == batches[1:]


# ---------------------------------------------------------------------------------------------- kills
KILLS = 20
QUICK = {"num_inference_steps": 1, "height": 32, "width": 32}


def assert_equal_runs(one: Run, other: Run) -> None:
    """Equal samples but for times, equal images, no leftovers."""
    samples, others = ({key: replace(s, seconds=0) for key, s in run.samples().items()} for run in (one, other))
    assert samples == others
    for key in samples:
        assert np.array_equal(pixels(one.image(key)), pixels(other.image(key))), key
    assert {path.name for path in one.images.iterdir()} == {path.name for path in other.images.iterdir()}


def forked(pipe: Any, folder: Path, batches: list[tasks_module.Batch]) -> int:
    """A child that goes on with the run; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        run_tasks(pipe, begin(folder), batches, QUICK, ABOUT)
    finally:
        os._exit(0)


def killed_at_work(pipe: Any, folder: Path, batches: list[tasks_module.Batch], after: float) -> bool:
    """Go on with a run, and kill that after so many seconds; whether it was still at work."""
    child = forked(pipe, folder, batches)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_twenty_kills_lose_nothing_and_change_nothing(tiny: Tiny, tmp_path: Path) -> None:
    batches = tasks(["a fox", "a cat"], [0, 1, 2], variants(["toma"], [0.5]), batch=2)
    whole, folder, killed, dice = begin(tmp_path / "whole"), tmp_path / "killed", 0, random.Random(0)
    start = time.perf_counter()
    run_tasks(tiny.pipe, whole, batches, QUICK, ABOUT)
    longest = (time.perf_counter() - start) / 3
    run, seen = Run(folder), {}
    while killed < KILLS:
        at_work = killed_at_work(tiny.pipe, folder, batches, dice.uniform(0, longest))
        killed += at_work
        now = run.samples()
        assert seen.items() <= now.items()  # nothing finished is lost, or generated again
        seen = now
        if not at_work:  # it was done before its time: the next ones are killed on a run of their own
            assert_equal_runs(whole, begin(folder))
            folder, seen = tmp_path / f"killed-{killed}", {}
            run = Run(folder)
    run_tasks(tiny.pipe, begin(folder), batches, QUICK, ABOUT)
    assert_equal_runs(whole, run)
    rows, others = ([replace(row, seconds=0) for row in measure(each, networks={}).rows] for each in (whole, run))
    assert rows == others
