import pytest

from tomadiff.errors import SettingError
from tomadiff.web.errors import line_of
from tomadiff.web.progress import Stopped


def test_what_was_foreseen_is_told_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    assert line_of(Stopped()) == "Stopped."
    assert line_of(SettingError("ratio=2 is\n not possible")) == "ratio=2 is not possible"
    assert "smaller size" in line_of(RuntimeError("CUDA error: out of memory"))
    assert caplog.records == []


def test_what_nobody_foresaw_is_short_on_the_page_and_whole_on_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    problem = RuntimeError("shapes " + "do not fit " * 100 + "\nsecond line")
    line = line_of(problem)
    assert line.startswith("That went wrong: RuntimeError: shapes")
    assert len(line) < 320
    assert "second line" not in line
    assert caplog.records[0].exc_info is not None
