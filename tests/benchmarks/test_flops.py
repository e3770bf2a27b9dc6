"""The table of FLOPs: how it is written, and what the committed one says."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

import pytest

from benchmarks.flops import BEGIN, END, LIMIT, MODELS, PAGE, RATIOS, RESULTS, Row, entries, markdown, put_between_marks


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with RESULTS.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def shares(rows: list[Row], model: str, method: str) -> list[float]:
    return [float(row["share"]) for row in rows if (row["architecture"], row["method"]) == (model, method)]


def test_methods_with_a_ratio_of_their_own_come_once() -> None:
    assert ["todo" in entries(ratio) for ratio in RATIOS] == [False, False, True]
    assert all("tomesd" in entries(ratio) for ratio in RATIOS)


def test_the_table_is_complete_and_on_the_page(rows: list[Row]) -> None:
    for model, ratio in product(MODELS, RATIOS):
        counted = {row["method"] for row in rows if row["architecture"] == model and float(row["ratio"]) == ratio}
        assert counted == {LIMIT, *entries(ratio)}
    assert markdown(rows) in PAGE.read_text(encoding="utf-8")


def test_the_limits_are_the_known_ones(rows: list[Row]) -> None:
    assert shares(rows, "sdxl", LIMIT) == pytest.approx([0.794, 0.602, 0.423], abs=5e-4)
    assert shares(rows, "flux", LIMIT) == pytest.approx([0.788, 0.593, 0.414], abs=5e-4)


@pytest.mark.parametrize("model", MODELS)
def test_the_papers_toma_is_within_one_percent_of_the_bound(rows: list[Row], model: str) -> None:
    for own, least in zip(shares(rows, model, "toma-paper"), shares(rows, model, "bound"), strict=True):
        assert least <= own < 1.01 * least


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n", encoding="utf-8")
    put_between_marks(page, "| new |")
    put_between_marks(page, "| new |")
    assert page.read_text(encoding="utf-8") == f"# Before\n\n{BEGIN}\n\n| new |\n\n{END}\n\nAfter\n"
