from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tomadiff.evaluation.report.plots import COLOURS, Line, line_chart, matrix_chart, sheet


def share_of(image: Image.Image, colour: tuple[int, int, int], tolerance: int = 12) -> float:
    apart = np.abs(np.asarray(image).astype(int) - np.array(colour)).max(-1)
    return float((apart <= tolerance).mean())


def test_lines_are_generated_in_their_colours_and_dashes_are_half_of_a_line() -> None:
    points = tuple((float(step), 0.5 + 0.04 * step) for step in range(10))
    whole, dashed = (
        share_of(line_chart("t", "n", "step", [Line("one", points, COLOURS[0], dashed=dashes)]), COLOURS[0])
        for dashes in (False, True)
    )
    assert whole > 0.002
    assert 0.3 < dashed / whole < 0.8
    assert share_of(line_chart("t", "n", "step", [Line("one", points, COLOURS[0])]), COLOURS[1]) == 0


@pytest.mark.parametrize("points", [((0.0, 0.5),), ((0.0, 1.0), (1.0, 1.0))])
def test_a_single_step_and_a_level_line_have_a_chart_too(points: tuple[tuple[float, float], ...]) -> None:
    generated = line_chart("t", "n", "step", [Line("one", points, COLOURS[0], dots=frozenset({0.0}))], (400, 300))
    assert generated.size == (400, 300)
    assert share_of(generated, COLOURS[0]) > 0


def test_a_long_legend_takes_more_rows_and_leaves_less_to_the_lines() -> None:
    points = ((0.0, 0.0), (9.0, 1.0))
    few, many = ([Line("a plan of some block", points, COLOURS[0])] * count for count in (1, 12))
    assert share_of(line_chart("t", "n", "step", many), COLOURS[0]) > share_of(
        line_chart("t", "n", "step", few), COLOURS[0]
    )


def test_a_matrix_is_darkest_where_all_is_in_common() -> None:
    generated = np.asarray(matrix_chart("t", "n", np.eye(4), range(4), 0.0).convert("L"))
    top, left, cell = 62, 70, 75
    middles = generated[top + cell // 2 : top + 4 * cell : cell, left + cell // 2 : left + 4 * cell : cell]
    assert (middles.diagonal() < 80).all()
    assert (middles[~np.eye(4, dtype=bool)] > 200).all()


def test_a_sheet_holds_all_its_charts() -> None:
    red, blue = Image.new("RGB", (40, 20), (255, 0, 0)), Image.new("RGB", (30, 50), (0, 0, 255))
    page = sheet([[red, blue], [red]])
    assert share_of(page, (255, 0, 0), 0) * page.width * page.height == pytest.approx(2 * 40 * 20)
    assert share_of(page, (0, 0, 255), 0) * page.width * page.height == pytest.approx(30 * 50)
