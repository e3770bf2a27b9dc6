"""The newer families through their pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tomadiff
from tests import newer, newer_pipelines

KINDS = newer_pipelines.KINDS
CASES = [pytest.param(name, marks=newer.needs(known.since)) for name, known in KINDS.items()]


@pytest.mark.parametrize("name", CASES)
def test_pipeline_merges_and_is_restored(name: str) -> None:
    built = newer_pipelines.build(name)

    def generate() -> Tensor:
        rng = torch.Generator().manual_seed(0)
        return newer_pipelines.latents_of(built.pipe(generator=rng, **built.settings))

    check_merges_and_is_restored(built.pipe, generate)


def check_merges_and_is_restored(pipe: Any, generate: Callable[[], Tensor]) -> None:
    """Every plan is used, nothing is left out, and every image is the same again; without a patch, the old one."""
    plain = generate()
    with tomadiff.apply(pipe, 0.5) as patch:
        merged = generate()
        assert torch.equal(generate(), merged), "a second image starts afresh"
        report = patch.report().models[0]
        assert all(level.tokens_after < level.tokens_before for level in report.levels)
        assert not report.bypassed
    assert merged.isfinite().all()
    assert not torch.equal(merged, plain)
    assert torch.equal(generate(), plain)
