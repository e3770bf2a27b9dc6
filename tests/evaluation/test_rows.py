from pathlib import Path

import pytest

from tomadiff.evaluation.runs.rows import append, read, write
from tomadiff.utils.reading import FileError


def test_rows_are_added_under_one_header(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.csv"
    assert read(path) == []
    append(path, {"name": 'a "b", c', "value": 1}, {"name": "d", "value": 0.5})
    append(path, {"name": "e", "value": 2})
    assert path.read_text().splitlines()[0] == "name,value"
    assert read(path) == [
        {"name": 'a "b", c', "value": "1"},
        {"name": "d", "value": "0.5"},
        {"name": "e", "value": "2"},
    ]
    with pytest.raises(FileError, match="other columns"):
        append(path, {"name": "f"})


def test_a_row_that_a_kill_cut_short_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write(path, [{"name": "a", "value": 1}])
    with path.open("a") as file:
        file.write("torn")
    append(path, {"name": "b", "value": 2})
    assert [row["name"] for row in read(path)] == ["a", "b"]
