"""The paper's experiments as data: complete, and about nothing that is not generated."""

from dataclasses import fields, replace

import pytest

from tomadiff import Stripes, ToMA, Whole
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
from tomadiff.evaluation.report.report import title_of
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.methods import registry
from tomadiff.methods.registry import PAPER


def test_every_table_has_one_experiment() -> None:
    assert sorted([*(one.table for one in EXPERIMENTS), *MERGE_SPEED]) == list(TABLES)
    assert set(PUBLISHED) <= set(TABLES)


def test_the_figures_are_those_of_the_issue() -> None:
    assert sorted(grid.number for one in EXPERIMENTS for grid in one.figures) == [1, 6, 7, 10]
    assert sorted(seen.number for one in EXPERIMENTS for seen in one.seen) == [3, 4, 9]
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


def test_every_row_says_whose_settings_it_has() -> None:
    """The paper's or the default's, unless it is the model in full, the speed limit, or a method of others."""
    rows = {variant for one in EXPERIMENTS for variant in one.variants}
    named = {one.name for one in rows if title_of(one.name).endswith((" (paper)", " (default)"))}
    assert {one.name for one in rows} - named == {"full", "bound", "tomesd-all", "tofu-all", "todo"}
    assert {one.name for one in rows if title_of(one.name).endswith(" (default)")} == {"toma-default"}
    assert named - {"toma-default"} <= PAPER.keys()


def test_the_variant_of_section_5_1_has_its_rows() -> None:
    method, _ = registry.named("paper-stripe-whole", 0.5)
    assert method == replace(ToMA.paper(0.5), regions=Stripes(16), attention_regions=Whole())
    there = {one.table for one in EXPERIMENTS if any(row.name == "paper-stripe-whole" for row in one.variants)}
    assert there == {1, 2, 8}


def test_schedules_have_the_papers_steps() -> None:
    assert {one.table: one.steps for one in EXPERIMENTS if one.steps} == {7: 50}


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
