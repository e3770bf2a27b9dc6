"""Rows that are finished are not computed again, whatever happened in between."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tomadiff.evaluation.runs.journal import Journal, kept
from tomadiff.evaluation.runs.prompts import Prompt
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.evaluation.timing import latency, merge_speed
from tomadiff.evaluation.timing.workloads import WholeImage
from tomadiff.evaluation.tune import search
from tomadiff.evaluation.tune.trials import Trials
from tomadiff.methods.toma import ToMA
from tomadiff.steps.schedule import Schedule
from tomadiff.utils.reading import NUMBER, FileError

KINDS = {"seconds": NUMBER}


class Counter:
    """Makes rows, and counts them."""

    made = 0

    def __call__(self) -> dict[str, float]:
        self.made += 1
        return {"seconds": float(self.made)}


def test_a_row_is_made_once_for_what_is_asked(tmp_path: Path) -> None:
    make, out = Counter(), tmp_path / "times.csv"
    assert Journal(out, {"size": 1}).row({"round": 0}, KINDS, make) == {"seconds": 1.0}
    again = Journal(out, {"size": 1})
    assert again.row({"round": 0}, KINDS, make) == {"seconds": 1.0}
    assert again.row({"round": 1}, KINDS, make) == {"seconds": 2.0}
    assert Journal(out, {"size": 2}).row({"round": 0}, KINDS, make) == {"seconds": 3.0}
    again.close()
    assert not list(tmp_path.iterdir())


def test_a_torn_line_is_made_again_and_no_other(tmp_path: Path) -> None:
    make, out = Counter(), tmp_path / "times.csv"
    journal = Journal(out)
    for turn in range(3):
        journal.row({"round": turn}, KINDS, make)
    assert journal.path is not None
    journal.path.write_bytes(journal.path.read_bytes()[:-9])
    assert [Journal(out).row({"round": turn}, KINDS, make)["seconds"] for turn in range(3)] == [1.0, 2.0, 4.0]
    assert [Journal(out).row({"round": turn}, KINDS, make)["seconds"] for turn in range(3)] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("line", ["[]", '{"asked": {}, "row": 3}', '{"asked": 1, "row": {}}', "[" * 5000 + "]" * 5000])
def test_a_journal_from_elsewhere_is_checked(line: str, tmp_path: Path) -> None:
    (tmp_path / "times.csv.unfinished.jsonl").write_text(f"{line}\n")
    with pytest.raises(FileError, match=r"times\.csv\.unfinished\.jsonl, line 1: "):
        Journal(tmp_path / "times.csv")


def test_a_journal_is_not_written_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "times.csv.unfinished.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="leads out of its folder"):
        Journal(tmp_path / "run" / "times.csv")
    assert Journal(Path("/dev/null")).path is None


def test_times_are_taken_again_only_if_something_else_is_asked(tmp_path: Path) -> None:
    make = Counter()

    def rows(_: Journal) -> list[dict[str, Any]]:
        return [make()]

    path = tmp_path / "new" / "times.json"
    assert kept(path, {"rounds": 3, "sizes": (1, 2)}, KINDS, rows) == [{"seconds": 1}]
    assert kept(path, {"rounds": 3, "sizes": (1, 2)}, KINDS, rows) == [{"seconds": 1}]
    assert kept(path, {"rounds": 4, "sizes": (1, 2)}, KINDS, rows) == [{"seconds": 2}]
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "rows": [{"seconds": "soon"}]}))
    with pytest.raises(FileError, match=r"times\.json, row 1: 'seconds' must be a number"):
        kept(path, {"rounds": 4, "sizes": (1, 2)}, KINDS, rows)


# ---------------------------------------------------------------------------------------------- who keeps one
class StopError(BaseException):
    """What a kill looks like from inside: no failure of a row."""


def stopping(work: Callable[..., Any], after: int) -> Callable[..., Any]:
    """``work``, which ends with the process after some calls."""
    left = iter(range(after))

    def stopped(*given: Any, **more: Any) -> Any:
        if next(left, None) is None:
            raise StopError
        return work(*given, **more)

    return stopped


def counting(work: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*given: Any, **more: Any) -> Any:
        calls.append(1)
        return work(*given, **more)

    return counted


@pytest.fixture(scope="module")
def workload() -> WholeImage:
    one = tiny.build("sd15")
    one.pipe.set_progress_bar_config(disable=True)
    return WholeImage(one.pipe, "tiny", {**one.settings, "num_inference_steps": 1})


def test_timing_goes_on_with_the_round_it_was_in(
    workload: WholeImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, calls, real = [Variant(), Variant.named("toma", 0.5)], list[int](), latency._timed
    with monkeypatch.context() as patched:
        patched.setattr(latency, "_timed", stopping(real, 3))
        with pytest.raises(StopError):
            latency.measure(workload, field, 3, journal=Journal(tmp_path / "bench.csv"))
    monkeypatch.setattr(latency, "_timed", counting(real, calls))
    first = latency.measure(workload, field, 3, journal=Journal(tmp_path / "bench.csv"))
    assert len(calls) == 4, "the first round of two was finished"
    assert latency.measure(workload, field, 3, journal=Journal(tmp_path / "bench.csv")) == first
    assert len(calls) == 4
    journal = Journal(tmp_path / "bench.csv")
    row = json.dumps({"parts": [{"image": [1.0, 2.0]}]})
    assert journal.path is not None
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    journal.path.write_text("".join(json.dumps({**line, "row": json.loads(row)}) + "\n" for line in lines[2:]))
    with pytest.raises(FileError, match="do not belong together"):
        latency.measure(workload, field, 3, journal=Journal(tmp_path / "bench.csv"))


def test_merging_goes_on_with_the_ratio_it_was_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = list[int](), merge_speed._row
    with monkeypatch.context() as patched:
        patched.setattr(merge_speed, "_row", stopping(real, 1))
        with pytest.raises(StopError):
            merge_speed.measure([1024], (0.25, 0.5), 1, journal=Journal(tmp_path / "merging.json"))
    monkeypatch.setattr(merge_speed, "_row", counting(real, calls))
    merge_speed.measure([1024], (0.25, 0.5), 1, journal=Journal(tmp_path / "merging.json"))
    assert len(calls) == 1


def test_a_search_goes_on_with_the_setting_it_was_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, calls, real = tiny.build("sd15"), list[int](), Trials.compare
    one.pipe.set_progress_bar_config(disable=True)
    call = {**one.settings, "num_inference_steps": 1}
    pairs = [(Prompt("a fox"), 0), (Prompt("an owl"), 0)]
    tried = [Variant.of("ours", ToMA(ratio), Schedule(1, 1)) for ratio in (0.3, 0.4, 0.5, 0.6)]
    monkeypatch.setattr(search, "dry_run", lambda *_: None)  # counting costs takes longer than generating here
    monkeypatch.setattr(search, "affordable", lambda *_: [(one, 0.5) for one in tried])

    def run(journal: Journal | None = None) -> list[search.Finding]:
        return search.search(one.pipe, call, pairs, 0.5, journal=journal)

    whole = run()
    assert len(whole) == len(tried)
    with monkeypatch.context() as patched:
        patched.setattr(Trials, "compare", stopping(real, 2))
        with pytest.raises(StopError):
            run(Journal(tmp_path / "preset.json"))
    monkeypatch.setattr(Trials, "compare", counting(real, calls))
    assert run(Journal(tmp_path / "preset.json")) == whole
    assert len(calls) == len(whole) - 2
