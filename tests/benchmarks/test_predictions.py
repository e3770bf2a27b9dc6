"""The predictions for GPUs: which are made, and how they are written down."""

from collections import Counter

import pytest
import torch

from benchmarks import predictions
from benchmarks.predictions import FLUX, KNOWN, PAPER, SDXL, compared_with_paper, keys, rows, text
from benchmarks.speed import BASELINE, title_of
from tomadiff.cost import GPUS, Op, Trace
from tomadiff.evaluation.timing.prediction import Window


@pytest.fixture(autouse=True)
def _traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of products at full rate, less what merges away."""

    def traced(key: predictions.Key, _: object = None, *, fused: bool = False) -> Window:
        ops = Counter({Op("matmul", torch.float16, round(1e14 * (1 - key[2])), 0): 1})
        return Window({"plain": (1.0, Trace(ops))})

    monkeypatch.setattr(predictions, "traced", traced)


def test_every_gpu_has_every_model_method_and_ratio() -> None:
    found = [row for gpu in GPUS.values() for row in rows(gpu)]
    assert len(found) == len(GPUS) * len(keys())
    assert (FLUX, PAPER, 0.5) in keys()
    assert (SDXL, PAPER, 0.5) not in keys()
    assert (SDXL, BASELINE, 0.0) in keys()
    assert {row["dtype"] for row in found} == {"float16"}


def test_the_paper_is_compared_by_shares_of_the_unmerged_time() -> None:
    found = [row for gpu in GPUS.values() for row in rows(gpu)]
    lines = compared_with_paper(found).splitlines()
    assert lines[2].endswith("| 0.958 | 0.883 | 0.767 |")
    assert lines[-1] == "| predicted, RTX 4090 | 0.750 | 0.500 | 0.250 |"
    written = text(found)
    assert "Nothing here was run on a GPU" in written
    assert f"| V100: {title_of(KNOWN['toma'])} | 1.33× | 2.00× | 4.00× |" in written
    seconds = 35 * 1e14 / (0.7 * 989.4e12)
    assert f"H100 {seconds:.1f} s" in written
