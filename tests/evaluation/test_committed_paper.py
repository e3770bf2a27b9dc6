"""The committed tables of the paper: whole, current, and with a verdict and a reason for every claim."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import COMMAND, PAGE, differences, settings
from tomadiff.evaluation.paper.claims import Verdict
from tomadiff.evaluation.paper.experiments import EXPERIMENTS, TABLES
from tomadiff.evaluation.paper.outcomes import merging_claims

LEAST = 30  # images of a row
MOST_BYTES = 2_000_000  # of all figures
FIGURES = {"1", "3", "4", "5", "6", "7", "9", "10"}
HELD = PAGE / "paper.json"

pytestmark = pytest.mark.skipif(not HELD.exists(), reason=f"docs/paper is not there yet; `{COMMAND}` writes it")


@pytest.fixture(scope="module")
def held() -> dict[str, Any]:
    return dict(json.loads(HELD.read_text(encoding="utf-8")))


def test_they_are_not_older_than_the_code(held: dict[str, Any]) -> None:
    assert differences(held["settings"]) == [], f"docs/paper is older than the code; make it again: {held['command']}"


def test_every_claim_has_a_verdict_with_its_reason(held: dict[str, Any]) -> None:
    known = {(one.table, claim.text) for one in EXPERIMENTS for claim in one.claims}
    known |= {(table, words) for table in (4, 5) for words in merging_claims(table)}
    judged = {(table["table"], one["claim"]): one for table in held["tables"] for one in table["judged"]}
    assert known == judged.keys()
    for one in judged.values():
        assert one["verdict"] in {verdict.value for verdict in Verdict}
        assert one["findings"]
        assert all(found["words"] for found in one["findings"])


def test_every_table_and_row_is_there_with_enough_images(held: dict[str, Any]) -> None:
    assert [table["table"] for table in held["tables"]] == list(TABLES)
    for table, one in ((table, one) for table in held["tables"] for one in EXPERIMENTS if one.table == table["table"]):
        assert len(table["rows"]) == len(one.variants), table["notes"]
        assert min(int(row[2][0]) for row in table["rows"]) >= LEAST
        assert one.steps is None or f"{one.steps} steps" in table["model"]


def test_figures_are_there_and_small() -> None:
    paths = sorted(PAGE.glob("figure-*.png"))
    assert {path.stem.split("-")[1] for path in paths} == FIGURES
    assert sum(path.stat().st_size for path in paths) < MOST_BYTES


def test_the_page_says_what_the_file_says(held: dict[str, Any]) -> None:
    page = (PAGE / "index.md").read_text(encoding="utf-8")
    assert held["command"] in page
    assert all(f"## Table {table['table']}: {table['title']}" in page for table in held["tables"])
    assert set(settings()) == {str(table) for table in TABLES}
    assert all(Path(PAGE / name).is_file() for name in _shown(page))


def _shown(page: str) -> list[str]:
    return [line.rpartition("](")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")]
