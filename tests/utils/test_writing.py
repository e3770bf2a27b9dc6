"""Files of ours are whole or not there, and what cannot be written is told before the work."""

import errno
import os
from pathlib import Path

import pytest

from tomadiff.errors import SettingError
from tomadiff.utils.writing import append_line, require_folder, require_output, write_whole


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "preset.json"
    for content in ("ä fox", b"\x00\xff", ""):
        write_whole(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_if_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "preset.json"
    write_whole(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_a_long_name_and_a_link_in_its_place(tmp_path: Path) -> None:
    write_whole(tmp_path / ("x" * 250), "long")
    target, link = tmp_path / "secret", tmp_path / "report.html"
    target.write_text("not ours")
    link.symlink_to(target)
    write_whole(link, "ours")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("not ours", "ours", False)


def test_what_is_no_file_is_written_to_as_it_is() -> None:
    write_whole("/dev/null", "gone")
    require_output(Path("/dev/null"), "--csv")
    assert not Path("/dev/null").is_file()


def test_lines_survive_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_line(path, "one")
    with path.open("ab") as file:
        file.write(b"torn")
    append_line(path, "two")
    append_line(path, "three")
    assert path.read_text() == "one\ntorn\ntwo\nthree\n"


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    require_output(tmp_path / "preset.json", "--out")
    assert not list(tmp_path.iterdir())
    with pytest.raises(SettingError, match=r"--out .*there is no folder .*nowhere; make it"):
        require_output(tmp_path / "nowhere" / "preset.json", "--out")
    with pytest.raises(SettingError, match="is a folder; give the name of a file"):
        require_output(tmp_path, "--out")
    require_output(tmp_path / "new" / "bench.csv", "--csv", make_folder=True)
    (tmp_path / "new").rmdir()
    (tmp_path / ".preset.json.77.side").write_text("torn by a kill")
    (tmp_path / ".other.json.77.side").write_text("of another command")
    require_output(tmp_path / "preset.json", "--out")
    assert [path.name for path in tmp_path.iterdir()] == [".other.json.77.side"]


def test_folders_are_checked_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_folder(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingError, match="file is not a folder"):
        require_folder(tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SettingError, match="may not be changed"):
        require_folder(tmp_path / "a")
