"""Tables show what was measured, and a dash where nothing was."""

import math

import numpy as np
import pytest

from benchmarks.tables import format_interval, markdown_table, mean_and_spread, replace_section


def test_a_table_rounds_numbers_and_marks_missing_values():
    table = markdown_table(["site", "n", "F1"], [["site-1", 12, 0.74649], ["site-2", 3, math.nan], ["site-3", 0, None]])
    assert table.splitlines() == [
        "| site | n | F1 |",
        "| --- | --- | --- |",
        "| site-1 | 12 | 0.746 |",
        "| site-2 | 3 | — |",
        "| site-3 | 0 | — |",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.float32(0.5), "0.50"),
        (np.float64("nan"), "—"),
        (np.int64(3), "3"),
        (-0.001, "0.00"),
        (-0.01, "-0.01"),
        (math.inf, "inf"),
        ("a|b\nc", r"a\|b c"),
    ],
)
def test_a_cell_fits_into_its_line(value, shown):
    assert markdown_table(["x"], [[value]], digits=2).splitlines()[2] == f"| {shown} |"


def test_a_header_is_escaped_like_a_cell():
    assert markdown_table(["P(a|b)"], []).splitlines() == [r"| P(a\|b) |", "| --- |"]


def test_an_interval_is_written_with_its_mean():
    assert format_interval(0.0118, -0.0018, 0.0254) == "0.012 [-0.002, 0.025]"
    assert format_interval(0.5, math.nan, math.nan, digits=1) == "0.5 [—, —]"


def test_spread_is_over_seeds_with_one_degree_of_freedom_less():
    assert mean_and_spread([0.5, 0.7], digits=4) == "0.6000 ± 0.1414"


def test_a_section_without_an_end_is_refused():
    with pytest.raises(ValueError, match="the section x has no end"):
        replace_section("<!-- x: begin --> text", "x", "new")
