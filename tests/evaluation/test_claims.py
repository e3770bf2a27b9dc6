"""Verdicts on claims: what holds, what fails, what is open, and what was never tested."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evaluation.synthetic_runs import painted_run
from tomadiff.evaluation.metrics.measure import measure
from tomadiff.evaluation.paper.claims import (
    ENOUGH,
    Alike,
    Below,
    Better,
    Check,
    Claim,
    Evidence,
    Faster,
    NearlyAsFast,
    Verdict,
    counts,
    judge,
)
from tomadiff.evaluation.paper.evidence import MeasuredRun, Timed
from tomadiff.evaluation.runs.variants import Variant

SOFT, HARD, OTHER = (Variant.named(name, ratio) for name, ratio in (("toma", 0.25), ("toma", 0.75), ("tomesd", 0.75)))
NONE = Variant()


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    """Landscapes that blur with the ratio, and take 2 − ratio seconds, by two methods alike."""
    prompts = [f"lake {number}" for number in range(ENOUGH)]
    run = painted_run(tmp_path_factory.mktemp("claims"), prompts, ("toma", "tomesd"), size=24)
    return MeasuredRun(run, measure(run, networks={}))


def verdict(check: Check, evidence: Evidence) -> Verdict:
    return check.look(evidence).verdict


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (Better(SOFT, HARD, "mse"), Verdict.HOLDS),
        (Better(HARD, SOFT, "mse"), Verdict.FAILS),
        (Better(HARD, OTHER, "mse"), Verdict.OPEN),
        (Better(SOFT, HARD, "clip"), Verdict.UNTESTED),
        (Better(SOFT, Variant.named("todo", 0.75), "mse"), Verdict.UNTESTED),
        (Alike(HARD, OTHER, "mse", 0.01), Verdict.HOLDS),
        (Alike(SOFT, HARD, "mse", 0.01), Verdict.FAILS),
        (Alike(SOFT, HARD, "mse", 10.0), Verdict.HOLDS),
        (Below(SOFT, "mse", 1e6), Verdict.HOLDS),
        (Below(HARD, "mse", 1e-6), Verdict.FAILS),
        (Below(HARD, "dino", 0.07), Verdict.UNTESTED),
        (Faster(HARD, SOFT), Verdict.HOLDS),
        (Faster(NONE, HARD), Verdict.FAILS),
        (Faster(HARD, OTHER), Verdict.OPEN),
        (NearlyAsFast(SOFT, HARD, 0.1), Verdict.FAILS),
        (NearlyAsFast(HARD, OTHER, 0.1), Verdict.HOLDS),
    ],
    ids=repr,
)
def test_a_check_on_images(check: Check, expected: Verdict, generated: MeasuredRun) -> None:
    assert verdict(check, generated) is expected


def test_a_finding_says_what_it_rests_on(generated: MeasuredRun) -> None:
    words = Better(SOFT, HARD, "mse").look(generated).words
    assert words.startswith("ToMA 25% against ToMA 75%: MSE -")
    assert "1.40× [1.40, 1.40] as fast as" in Faster(HARD, SOFT).look(generated).words


def test_few_samples_settle_nothing(tmp_path: Path) -> None:
    run = painted_run(tmp_path, ["a lake"], size=24)
    evidence = MeasuredRun(run, measure(run, networks={}))
    for check in (Better(SOFT, HARD, "mse"), Faster(HARD, SOFT), Alike(SOFT, SOFT, "mse", 0.1)):
        assert verdict(check, evidence) is Verdict.OPEN


def rounds(seconds: float) -> list[float]:
    return [seconds + place / 100 for place in range(ENOUGH)]


def test_times_alone_are_compared_round_by_round() -> None:
    evidence = Timed({NONE.group: rounds(2.0), HARD.group: rounds(1.0), SOFT.group: [1.0, 3.0] * (ENOUGH // 2)})
    assert verdict(Faster(HARD, NONE), evidence) is Verdict.HOLDS
    assert verdict(Faster(SOFT, NONE), evidence) is Verdict.OPEN
    assert verdict(Faster(OTHER, NONE), evidence) is Verdict.UNTESTED
    assert verdict(Better(HARD, NONE, "mse"), evidence) is Verdict.UNTESTED


def test_speed_ups_of_two_methods_are_inverse() -> None:
    """Times that vary: means of their ratios would make each of the two faster than the other."""
    evidence = Timed({NONE.group: [1.0, 3.0] * (ENOUGH // 2), HARD.group: [3.0, 1.0] * (ENOUGH // 2)})
    there, back = evidence.speed_up(HARD, NONE), evidence.speed_up(NONE, HARD)
    assert there is not None
    assert back is not None
    assert there.value * back.value == pytest.approx(1)
    assert there.value == pytest.approx(1)


def checks() -> Iterator[tuple[tuple[Check, ...], Verdict]]:
    holds, fails, open_, untested = (
        Faster(HARD, SOFT), Faster(NONE, HARD), Faster(HARD, OTHER), Better(SOFT, HARD, "clip"),
    )  # fmt: skip
    yield (holds, holds), Verdict.HOLDS
    yield (holds, untested), Verdict.HOLDS
    yield (holds, open_, untested), Verdict.OPEN
    yield (holds, open_, fails), Verdict.FAILS
    yield (untested,), Verdict.UNTESTED


@pytest.mark.parametrize(("parts", "expected"), list(checks()))
def test_a_claim_stands_on_all_of_its_checks(
    parts: tuple[Check, ...], expected: Verdict, generated: MeasuredRun
) -> None:
    judged = judge(Claim("so it is", parts), generated)
    assert judged.verdict is expected
    assert len(judged.findings) == len(parts)
    assert counts([judged, judged])[expected] == 2
