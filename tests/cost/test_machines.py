"""Named machines: which constants stand for a device, and calibrations that take their place."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tomadiff
from tests import tiny
from tomadiff import ToMA
from tomadiff.cli import calibrate as command
from tomadiff.cli import doctor
from tomadiff.cli.main import app
from tomadiff.cost import GPUS, Hardware, calibration, machines
from tomadiff.cost.calibration import VARIABLE, Entry
from tomadiff.errors import SettingError

CPU, FLOAT, HALF = torch.device("cpu"), torch.float32, torch.float16
MINE = Hardware("mine", {FLOAT: 3e11}, 5e10, 2e-6, {"attention": 0.5, "gather": 0.2}, fresh=4e10)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    calibration._read_once.cache_clear()
    calibration._unknown.cache_clear()


# ---------------------------------------------------------------------------------------------- by name
def gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], processors: int) -> Hardware:
    """As if there were one."""
    major, minor = capability
    about = SimpleNamespace(name=name, major=major, minor=minor, multi_processor_count=processors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    monkeypatch.setattr(machines, "fused", lambda *_: capability >= (8, 0))
    return Hardware.of("cuda", HALF)


@pytest.mark.parametrize(
    ("name", "capability", "processors", "known"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), 80, "V100"),
        ("Quadro RTX 8000", (7, 5), 72, "RTX 8000"),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, "RTX 6000 Ada"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, "A100"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, "H100"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, "RTX 4090"),
    ],
)
def test_known_gpus_are_known_by_their_name(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], processors: int, known: str
) -> None:
    found = gpu(monkeypatch, name, capability, processors)
    assert (found.name, found.source, found.matmul) == (name, GPUS[known].source, GPUS[known].matmul)
    assert found.overlaps


@pytest.mark.parametrize(
    ("name", "capability", "processors", "relative"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76, "RTX 4090"),
        ("NVIDIA H100 PCIe", (9, 0), 114, "H100"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", (8, 0), 14, "A100"),
        ("NVIDIA GeForce RTX 3060", (8, 6), 28, "RTX 4090"),
        ("NVIDIA B200", (10, 0), 148, "H100"),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, "RTX 4090"),
        ("Tesla T4", (7, 5), 40, "RTX 8000"),
        ("NVIDIA GeForce GTX 1080", (6, 1), 20, "V100"),
        ("something of the future", (99, 0), 300, "RTX 4090"),
    ],
)
def test_other_gpus_are_scaled_relatives(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], processors: int, relative: str
) -> None:
    found = gpu(monkeypatch, name, capability, processors)
    share = processors / machines._PROCESSORS[relative]
    assert found.rate("matmul", HALF) == pytest.approx(share * GPUS[relative].rate("matmul", HALF))
    assert found.bandwidth == pytest.approx(share * GPUS[relative].bandwidth)
    assert str(found) == f"{name} ({relative} scaled to {processors} multiprocessors)"
    assert found.fuses == (capability >= (8, 0))


def test_cpus_differ_by_threads_and_instructions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for instructions in ("AVX512", "AVX2", "DEFAULT"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda instructions=instructions: instructions)
        assert Hardware.of(CPU, FLOAT, 4) == Hardware.of("cpu", HALF, 4)
        found[instructions] = [Hardware.of(CPU, FLOAT, threads).rate("matmul", FLOAT) for threads in (1, 2, 16, 64)]
        assert found[instructions][0] < found[instructions][1] < found[instructions][2] == found[instructions][3]
        assert str(Hardware.of(CPU, FLOAT, 1)).startswith(f"CPU, {instructions}, 1 thread (")
    assert found["AVX512"][0] > found["AVX2"][0] > found["DEFAULT"][0]
    assert Hardware.of() == Hardware.of(CPU, FLOAT, torch.get_num_threads())


def test_every_kind_of_device_has_an_entry() -> None:
    assert all(Hardware.of(kind, HALF).source for kind in ("mps", "xpu", "hpu", "meta"))
    assert "taken for a V100" in str(Hardware.of("hpu"))


def test_the_doctor_names_the_machine_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.machines()[0] == f"cpu: {Hardware.of()}"
    monkeypatch.setenv(VARIABLE, str(written(tmp_path / "mine.json")))
    assert f"calibration {tmp_path / 'mine.json'}" in doctor.machines()[0]
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "broken.json"))
    assert "not a calibration" in doctor.machines()[0]


# ---------------------------------------------------------------------------------------------- calibrations
def written(path: Path, **changes: Any) -> Path:
    entry = Entry.of(MINE, CPU, FLOAT)
    path.write_text(calibration.as_text([Entry(**{**vars(entry), **changes})]))
    return path


def test_a_calibration_is_used_where_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, plain = written(tmp_path / "mine.json"), Hardware.of()
    assert Hardware.of() == plain, "that it exists changes nothing"
    monkeypatch.setenv(VARIABLE, str(path))
    found = Hardware.of()
    assert (found.matmul, found.bandwidth, found.launch) == (MINE.matmul, MINE.bandwidth, MINE.launch)
    assert (found.shares, found.fresh, found.weights) == (MINE.shares, MINE.fresh, MINE.weights)
    assert found.source == f"calibration {path}"
    path.unlink()
    assert Hardware.of() == found, "one process decides by one version of it"


def test_the_summary_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.json", launch=1e-12)
    monkeypatch.setenv(VARIABLE, str(path))
    unet = tiny.model("sd15")
    with tomadiff.apply(unet, ToMA.paper(), guard=True) as patch, torch.no_grad():
        unet(torch.randn(1, 4, 16, 16), 500, torch.randn(1, 5, 32))
        assert f"(calibration {path})" in patch.summary()


@pytest.mark.parametrize("changes", [{"threads": 77}, {"dtype": "float16"}, {"device": "x"}, {"torch_version": "1.0"}])
def test_what_it_does_not_know_has_the_constants_that_ship(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Hardware.of()
    monkeypatch.setenv(VARIABLE, str(written(tmp_path / "mine.json", **changes)))
    caplog.set_level(logging.WARNING, "tomadiff")
    assert Hardware.of() == Hardware.of() == plain
    assert [record.getMessage().count("`tomadiff calibrate` adds one") for record in caplog.records] == [1]


GOOD = vars(Entry.of(MINE, CPU, FLOAT)) | {"shares": {}}
HOSTILE = {
    "empty": "",
    "no JSON": "{",
    "deep": "[" * 100_000,
    "binary": b"\xff\xfe\x00",
    "a list": "[]",
    "another format": '{"format": "x", "entries": []}',
    "no entries": '{"format": "tomadiff calibration 1"}',
    "entries": '{"format": "tomadiff calibration 1", "entries": {"a": 1}}',
    "an entry": '{"format": "tomadiff calibration 1", "entries": [7]}',
    **{
        f"{name}={value!r}": json.dumps({"format": "tomadiff calibration 1", "entries": [{**GOOD, name: value}]})
        for name, value in (
            ("threads", 0),
            ("threads", True),
            ("threads", "2"),
            ("device", 7),
            ("matmul", 0),
            ("matmul", -1.0),
            ("matmul", "fast"),
            ("launch", None),
            ("bandwidth", float("nan")),
            ("fresh", float("inf")),
            ("weights", 10**40),
            ("shares", {"attention": "x"}),
            ("shares", {"matmul": 1.0}),
            ("shares", [1]),
            ("__class__", "x"),
        )
    },
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_broken_file_is_one_clear_error(
    content: str | bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        SettingError, match=r"broken.json.* not a calibration that can be used: write one with .tomadiff calibrate"
    ):
        calibration.read(path)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(SettingError, match="not a calibration"):
        Hardware.of()


@pytest.mark.parametrize("settings", [{"ratio": 0.5, "guard": True}, {"speedup": 1.1, "guard": False}])
def test_a_broken_file_is_told_before_anything_runs(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere.json"))
    unet = tiny.model("sd15")
    with pytest.raises(SettingError, match=r"nowhere.json: there is no such file.* not a calibration"):
        tomadiff.apply(unet, **settings)
    tomadiff.apply(unet, 0.5, guard=False).remove()


# ---------------------------------------------------------------------------------------------- the command
@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rounds find, in turn."""
    rounds = iter([1e11, 3e11, 2e11] * 9)
    monkeypatch.setattr(Hardware, "measure", lambda *_: Hardware("mine", {FLOAT: next(rounds)}, 5e10, 2e-6))


@pytest.mark.usefixtures("measured")
def test_the_command_writes_what_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.json"
    result = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--out", str(path)])
    assert result.exit_code == 0, result.output
    assert f"export {VARIABLE}={path}" in result.output
    assert "Something else was running" in result.output, "the rounds differ"
    monkeypatch.setenv(VARIABLE, str(path))
    assert Hardware.of().rate("matmul", FLOAT) == 2e11, "the middle one"
    assert [one.name for one in path.parent.iterdir()] == ["mine.json"]


@pytest.mark.usefixtures("measured")
def test_entries_are_added_and_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, threads = written(tmp_path / "mine.json", threads=77), torch.get_num_threads()
    for _ in range(2):
        result = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--out", str(path), "--json"])
        assert json.loads(result.output)["path"] == str(path)
    assert sorted(entry.threads for entry in calibration.read(path).values()) == sorted([77, threads])


@pytest.mark.parametrize(("share", "disturbed"), [(1.8, False), (0.3, True)])
def test_a_machine_that_is_steadily_busy_is_noticed(
    share: float, disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hardware, "measure", lambda *_: MINE)
    monkeypatch.setattr(command.time, "perf_counter", iter([0.0, 1.0]).__next__)
    monkeypatch.setattr(command.time, "process_time", iter([0.0, share]).__next__)
    assert command._measured(CPU, FLOAT) == (MINE, disturbed)


@pytest.mark.usefixtures("measured")
def test_it_goes_to_the_settings_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command.typer, "get_app_dir", lambda name: str(tmp_path / name))
    result = CliRunner().invoke(app, ["calibrate", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert len(calibration.read(tmp_path / "tomadiff" / "calibration.json")) == 1


def test_a_file_that_is_something_else_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And nothing is measured for it."""
    monkeypatch.setattr(Hardware, "measure", lambda *_: pytest.fail("measured"))
    path = tmp_path / "letter.json"
    path.write_text("Dear all")
    for given in (path, tmp_path):
        result = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--out", str(given)])
        assert result.exit_code == 2, result.output
    assert path.read_text() == "Dear all"
