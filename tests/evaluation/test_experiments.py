"""The paper's experiments as data: complete, and about nothing that is not generated."""

from dataclasses import fields

import pytest

from tomadiff.errors import SettingError
from tomadiff.evaluation.paper.experiment import Experiment
from tomadiff.evaluation.paper.experiments import (
    EXPERIMENTS,
    MERGE_SPEED,
    TABLES,
    experiments_of,
    tables_named,
)
from tomadiff.evaluation.paper.published import PUBLISHED
from tomadiff.evaluation.runs.variants import Variant


def test_every_table_has_one_experiment() -> None:
    assert sorted([*(one.table for one in EXPERIMENTS), *MERGE_SPEED]) == list(TABLES)
    assert set(PUBLISHED) <= set(TABLES)


def test_the_figures_are_those_of_the_issue() -> None:
    assert sorted(grid.number for one in EXPERIMENTS for grid in one.figures) == [1, 6, 7, 10]
    assert any(one.curves for one in EXPERIMENTS)  # figure 5


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: f"table {one.table}")
def test_claims_and_figures_are_about_what_is_generated(experiment: Experiment) -> None:
    generated = set(experiment.variants)
    assert experiment.variants[0] == Variant()
    assert len(generated) == len(experiment.variants)
    for claim in experiment.claims:
        assert claim.checks
        for check in claim.checks:
            values = (getattr(check, field.name) for field in fields(check))  # type: ignore[arg-type]
            assert {value for value in values if isinstance(value, Variant)} <= generated
    assert all(set(grid.columns) <= generated for grid in experiment.figures)


def test_the_paper_claims_something_about_every_table() -> None:
    assert all(any(not claim.about_default for claim in one.claims) for one in EXPERIMENTS)


def test_tables_are_chosen_by_number() -> None:
    assert tables_named("6, 2,6") == (2, 6)
    assert tables_named(None) == TABLES
    assert [one.table for one in experiments_of((4, 5, 6, 10))] == [6, 10]
    assert [one.table for one in experiments_of(TABLES, "transformer")] == [10]
    for wrong in ("11", "two", ",", "0"):
        with pytest.raises(SettingError, match="numbers from 1 to 10"):
            tables_named(wrong)
