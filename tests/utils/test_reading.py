"""Files from elsewhere, broken in every way: one error of ours that names the file, and nothing outside is read."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from tests.evaluation.synthetic_runs import painted_run
from tomadiff.cli.main import app
from tomadiff.errors import SettingError, TomaError
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.report.page import page
from tomadiff.evaluation.report.report import load_runs, markdown
from tomadiff.evaluation.runs.models import ModelError, load
from tomadiff.evaluation.runs.prompts import PromptError, load_prompts
from tomadiff.evaluation.runs.record import Run, RunError, note_of
from tomadiff.presets import Preset, available
from tomadiff.utils.reading import FileError, inside, read_json, read_text

DEEP = "[" * 100_000 + "]" * 100_000
LESS_DEEP = '{"a":' * 200 + "1" + "}" * 200  # json reads it; whoever walks through it by recursion may not


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = painted_run(tmp_path_factory.mktemp("runs") / "run", ["a lake"], size=24)
    measure(run, networks={})
    return run


@pytest.fixture
def copy(measured: Run, tmp_path: Path) -> Run:
    shutil.copytree(measured.folder, tmp_path / "copy")
    return Run(tmp_path / "copy")


def report(run: Run) -> str:
    """Everything that reads a run."""
    told = load_runs([run.folder])
    return page(told, "a report") + markdown(told)


# ---------------------------------------------------------------------------------------------- one by one
@pytest.mark.parametrize(
    ("held", "told"),
    [
        (b"{", r"line 1: is not JSON"),
        (b"[1,\n2,,]", r"line 2: is not JSON"),
        (DEEP.encode(), "nested more than 32 deep"),
        (LESS_DEEP.encode(), "nested more than 32 deep"),
        (b"1" * 5000, "is not JSON"),
        (b"[\n\xff]", r"line 2: is not UTF-8"),
    ],
)
def test_what_is_no_json_is_told_with_its_line(held: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "held.json"
    path.write_bytes(held)
    with pytest.raises(FileError, match=rf"held\.json.*{told}"):
        read_json(path)


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # it has holes, and fills no disk
    with pytest.raises(FileError, match="larger than 64 MiB"):
        read_text(path)
    with pytest.raises(PromptError, match="larger than 64 MiB"):
        load_prompts(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "/dev", "nowhere.json"])
def test_what_is_no_file_is_told(name: str) -> None:
    with pytest.raises(FileError):
        read_text(Path(name))
    with pytest.raises(SettingError, match="no preset"):
        Preset.load(name)


@pytest.mark.parametrize(
    "stored",
    [
        DEEP,
        LESS_DEEP,
        '{"method": {"kind": ["ToMA"]}}',
        '{"method": {"kind": "ToMA", "ratio": "half"}}',
        '{"method": {"kind": "ToMA", "ratio": 1e999}}',
        '{"method": {"kind": "ToMA", "levels": {"kind": "Tiles", "side": [[]]}}}',
        '{"method": {"kind": "ToMA", "regions": 3}}',
        '{"method": {"kind": "ToMA"}, "schedule": "now"}',
        '{"method": {"kind": "ToMA"}, "why": ["because"]}',
        '{"method": {"kind": "ToMA"}, "more": 1}',
        '{"method": {"kind": "ToMA", "\\ud800": 1}}',
        '{"method": [1]}',
        "null",
    ],
)
def test_a_hostile_preset_is_one_error(stored: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(stored)
    with pytest.raises(SettingError, match=r"mine\.json is not a preset"):
        Preset.load(path)


@pytest.mark.parametrize("held", [DEEP, "[]", '{"config": 3, "environment": {}}', '{"config": {}}', "null", '"x"'])
def test_a_hostile_run_json_is_one_error(held: str, copy: Run) -> None:
    (copy.folder / "run.json").write_text(held)
    with pytest.raises(RunError, match=r"run\.json"):
        report(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "../../secret/x"},
        {"method": "..\\secret"},
        {"method": ".hidden"},
        {"method": 3},
        {"method": "\ud800"},
        {"ratio": "half"},
        {"ratio": float("nan")},
        {"ratio": True},
        {"prompt": None},
        {"prompt": "\ud800"},
        {"seed": "0"},
        {"seed": 1.5},
        {"seconds": -1},
        {"seconds": 10**400},
        {"metrics": [1]},
        {"metrics": {"psnr": "high"}},
        {"negative": {}},
        {"more": 1},
    ],
)
def test_a_hostile_sample_is_told_with_its_line(change: dict[str, Any], copy: Run) -> None:
    path = copy.folder / "results.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), **change})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"results\.jsonl, line 3: "):
        report(copy)
    result = CliRunner().invoke(app, ["report", str(copy.folder)])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("line", [DEEP, LESS_DEEP, "[]", "3", "x" * 2**21])
def test_a_hostile_line_is_told(line: str, copy: Run) -> None:
    with (copy.folder / "results.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"results\.jsonl, line \d+: "):
        report(copy)


def test_torn_lines_are_left_out(copy: Run) -> None:
    before, path = report(copy), copy.folder / "results.jsonl"
    path.write_bytes(b'{"method": "to\n' + path.read_bytes() + b'{"method": "toma", "rat')
    assert report(copy) == before


@pytest.mark.parametrize("held", [DEEP, "[]", "{}", '{"reference": "full", "rows": [1]}'])
def test_a_hostile_summary_is_one_error(held: str, copy: Run) -> None:
    (copy.folder / "summary.json").write_text(held)
    with pytest.raises(RunError, match=r"summary\.json"):
        report(copy)


@pytest.mark.parametrize("held", [DEEP, "[]", "3"])
def test_a_hostile_model_index_is_one_error(held: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(held)
    with pytest.raises(ModelError, match=r"model_index\.json"):
        load(tmp_path)


@pytest.mark.parametrize("held", [DEEP, '["\\ud800"]', '[{"prompt": 3}]', '[{"prompt": "a", "negative": [1]}]', "3"])
def test_hostile_prompts_are_one_error(held: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text(held)
    with pytest.raises(PromptError, match=r"prompts\.json"):
        load_prompts(tmp_path / "prompts.json")


# ---------------------------------------------------------------------------------------------- nothing outside
@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret" / "x-0.5.png"
    path.parent.mkdir()
    Image.new("RGB", (24, 24), (1, 2, 3)).save(path)
    return path


def images_of(run: Run) -> list[Path]:
    return sorted(run.images.glob("*.png"))


def test_a_link_out_of_the_folder_is_not_followed(copy: Run, secret: Path) -> None:
    first = images_of(copy)[0]
    first.unlink()
    first.symlink_to(secret)
    with pytest.raises(RunError, match="leads out of its folder"):
        report(copy)
    first.unlink()
    first.symlink_to(images_of(copy)[-1])  # inside, links are as good as files
    report(copy)


@pytest.mark.parametrize("name", ["images", "run.json", "results.jsonl", "summary.json"])
def test_no_file_of_a_run_is_read_or_written_elsewhere(name: str, copy: Run) -> None:
    elsewhere = copy.folder.parent / f"elsewhere-{name}"
    (copy.folder / name).rename(elsewhere)
    (copy.folder / name).symlink_to(elsewhere)
    with pytest.raises(RunError, match="leads out of its folder"):
        report(copy)
    if name != "summary.json":
        with pytest.raises(RunError, match="leads out of its folder"):
            Run.begin(copy.folder, {"model": "painted", "call": {"num_inference_steps": 4}}, {}).samples()


def test_pipes_and_circles_are_not_waited_for(copy: Run) -> None:
    first = images_of(copy)[0]
    first.unlink()
    os.mkfifo(first)
    with pytest.raises(RunError, match="neither a file nor a folder"):
        report(copy)
    first.unlink()
    first.symlink_to(first)
    with pytest.raises(RunError):
        report(copy)


def test_paths_stay_inside(tmp_path: Path) -> None:
    assert inside(tmp_path, "images", "x.png") == tmp_path / "images" / "x.png"
    for parts in (("..", "x"), ("/etc/passwd",), ("a", "..", "..", "x")):
        with pytest.raises(FileError, match="leads out"):
            inside(tmp_path, *parts)


def broken_images(whole: bytes) -> Iterator[bytes]:
    yield b""
    yield whole[: len(whole) // 2]
    yield b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    huge = bytearray(whole)
    huge[16:24] = (60_000).to_bytes(4, "big") * 2
    yield bytes(huge)


def test_broken_images_are_one_error(copy: Run) -> None:
    first = images_of(copy)[0]
    for held in broken_images(first.read_bytes()):
        first.write_bytes(held)
        with pytest.raises(RunError, match=first.stem):
            copy.image(first.stem)
        with pytest.raises(RunError, match=first.stem):
            note_of(first)


# ---------------------------------------------------------------------------------------------- mutated at random
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("../../x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def mutated(held: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """The same with one value somewhere in it replaced, left out or doubled."""
    if isinstance(held, dict) and held and draw(st.integers(0, 4)):
        name = draw(st.sampled_from(sorted(held)))
        how = draw(st.sampled_from(["deeper", "deeper", "gone", "renamed"]))
        rest = {other: value for other, value in held.items() if other != name}
        if how == "gone":
            return rest
        return rest | (
            {draw(st.text(max_size=9)): held[name]} if how == "renamed" else {name: mutated(held[name], draw)}
        )
    if isinstance(held, list) and held and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(held) - 1))
        return [*held[:place], mutated(held[place], draw), *held[place + 1 :]]
    return draw(values)


def damaged(text: str, draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Text of JSON, with one of its values or some of its bytes changed."""
    if draw(st.booleans()):
        return json.dumps(mutated(json.loads(text), draw)).encode()
    held, place = text.encode(), draw(st.integers(0, len(text)))
    return held[:place] + draw(st.binary(max_size=4)) + held[place + draw(st.integers(0, 4)) :]


def passes_or_is_told(use: Callable[[], Any], name: str) -> None:
    """Whatever is in a file: it is used, or one error of ours names it."""
    told = name
    try:
        use()
    except TomaError as problem:
        told = str(problem)
    assert name in told or "run" in told


FUZZED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZED
@given(st.data())
def test_mutated_presets(tmp_path: Path, data: st.DataObject) -> None:
    stored = Preset.load(data.draw(st.sampled_from(available()))).as_json()
    path = tmp_path / "mine.json"
    path.write_bytes(damaged(stored, data.draw))
    passes_or_is_told(lambda: Preset.load(path).as_json(), "mine.json")


@FUZZED
@given(st.data())
def test_mutated_runs(measured: Run, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "run"
    shutil.copytree(measured.folder, folder, dirs_exist_ok=True)
    path = folder / data.draw(st.sampled_from(["run.json", "results.jsonl", "results.jsonl", "summary.json"]))
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    place = data.draw(st.integers(0, len(lines) - 1))
    held = [line.encode() for line in lines]
    held[place] = damaged(lines[place], data.draw)
    path.write_bytes(b"\n".join(held) + b"\n")
    passes_or_is_told(lambda: report(Run(folder)), path.name)


@FUZZED
@given(st.data())
def test_mutated_prompts(tmp_path: Path, data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from([".json", ".csv", ".tsv", ".txt"]))
    path = tmp_path / f"prompts{ending}"
    text = '[{"prompt": "a fox", "negative": "rain", "tag": 3}, "an owl"]'
    tables = {".csv": 'prompt,tag\n"a, fox",x\n', ".tsv": "Prompt\ttag\na fox\tx\n", ".txt": "n01440764 tench\na fox\n"}
    path.write_bytes(damaged(text if ending == ".json" else json.dumps(tables[ending]), data.draw))
    passes_or_is_told(lambda: load_prompts(path), path.name)
