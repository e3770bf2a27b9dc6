"""A sample of the fuzzer: a few cases of every family; ``python -m tests.fuzz`` runs hundreds."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from tests import tiny
from tests.fuzz.cases import TOOLS, Case, cases
from tests.fuzz.models import FAMILIES, FURTHER
from tests.fuzz.promises import check

RUNS, MORE = 1, 4  # of each family, and of those whose pipelines are whole: 43
QUICK = tuple(tool for tool in TOOLS if tool != "compiled blocks")  # tests of compiling are elsewhere


@pytest.mark.parametrize("family", [*FAMILIES, *FURTHER])
def test_promises_hold(family: str) -> None:
    """Hypothesis draws the same cases every time, and shrinks one that fails."""

    @settings(max_examples=MORE if family in tiny.FAMILIES else RUNS, phases=(Phase.generate, Phase.shrink))
    @given(cases(QUICK, family=family))
    def run(case: Case) -> None:
        check(case)

    run()
