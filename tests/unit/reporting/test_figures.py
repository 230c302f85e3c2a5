"""A site looks the same in every figure, and what cannot be drawn is not."""

import numpy as np
import pytest

from grandrounds.evaluation.cases import cases_of, joined
from grandrounds.reporting.course_figures import (
    budget_figure,
    learning_figure,
    matrix_figure,
    site_figure,
    traffic_figure,
    validation_curves,
)
from grandrounds.reporting.curve_figures import confusion_figure, reliability_figure, risk_figure, roc_figure
from grandrounds.reporting.record import read_run
from grandrounds.reporting.run import Spent
from grandrounds.reporting.scores import scores_of
from grandrounds.reporting.style import looks

from .conftest import CLASSES, SITES


def brightness(colour):
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.fixture
def run(make_run):
    return read_run(make_run(), "x")


def test_no_two_of_28_look_the_same_even_in_grey():
    found = looks([str(number) for number in range(28)])
    assert len(set(found.values())) == 28
    first = list(found.values())[:7]
    assert len({look.marker for look in first}) == 7
    for look in found.values():
        alike = [other for other in found.values() if abs(brightness(other.colour) - brightness(look.colour)) < 0.02]
        assert sum((other.marker, str(other.dash)) == (look.marker, str(look.dash)) for other in alike) == 1


def test_a_site_has_its_colour_in_every_figure_whoever_else_is_there(run):
    sites = ["site-0", *SITES]
    curves = validation_curves(run, "balanced_accuracy")
    lines = {line.get_label(): line for line in learning_figure(curves, sites, "balanced_accuracy").axes[0].lines}
    expected = looks(sites)
    assert {site: line.get_color() for site, line in lines.items()} == {site: expected[site].colour for site in SITES}
    marks = site_figure({"x": scores_of(run)}, sites, "balanced_accuracy").axes[0].lines
    assert {line.get_color() for line in marks if line.get_marker() != "None" and line.get_xdata().size} <= {
        look.colour for look in expected.values()
    }


def test_curves_start_at_the_round_whose_model_was_scored(run):
    curves = validation_curves(run, "balanced_accuracy")
    assert curves["site-1"] == pytest.approx({1: 0.4, 2: 0.5})


def test_roc_points_are_scikit_learns_ends_included(run):
    cases = joined(list(run.places.values()))
    axes = roc_figure(cases, CLASSES).axes[0]
    drawn = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert set(drawn) == set(CLASSES)
    for line in drawn.values():
        assert (line.get_xdata()[0], line.get_ydata()[0]) == (0, 0)
        assert (line.get_xdata()[-1], line.get_ydata()[-1]) == (1, 1)


def test_a_class_with_too_few_cases_has_no_curve(make_run):
    run = read_run(make_run(counts={"nevus": 20, "melanoma": 12, "other": 3}), "x")
    axes = roc_figure(joined(list(run.places.values())), CLASSES).axes[0]
    assert "other" not in {line.get_label() for line in axes.lines}


def test_nothing_is_drawn_from_nothing():
    few = cases_of(np.zeros(5, np.int64), np.full((5, 2), 0.5))
    assert roc_figure(few, ("a", "b")) is None
    assert reliability_figure(few) is None
    assert risk_figure({"x": few}, ["x"]) is None
    assert learning_figure({}, [], "f1_macro") is None


def test_counts_are_written_into_the_confusion_matrix():
    axes = confusion_figure(np.array([[3, 1], [0, 4]]), ("a", "b")).axes[0]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {(0, 0): "3", (1, 0): "1", (1, 1): "4"}


def test_bars_are_the_bytes_of_the_record(run):
    axes = traffic_figure({"x": run}).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([9, 1.5, 6])


def test_a_budget_rises_over_rounds_and_an_infinite_one_is_not_drawn(run):
    spent = Spent("site-2", "patient", 3.2, 1e-5, ((1, 1.5), (2, 3.2)))
    (line,) = budget_figure([spent], SITES).axes[0].lines
    assert (line.get_color(), line.get_ydata().tolist()) == (looks(SITES)["site-2"].colour, [1.5, 3.2])
    assert budget_figure([Spent("site-1", "patient", None, 1e-5, ((1, None),))], SITES) is None


def test_unknown_rows_of_a_matrix_stay_empty():
    matrix = np.array([[0.5, 0.5], [np.nan, np.nan]])
    axes = matrix_figure(matrix, ("a", "b"), "relation").axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.50", "0.50"]
