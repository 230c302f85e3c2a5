"""A site looks the same in every figure, and what cannot be drawn is not."""

import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve, roc_curve

from grandrounds.evaluation.bootstrap import cases_of, joined
from grandrounds.evaluation.history import validation_curves
from grandrounds.evaluation.score import Score
from grandrounds.plotting import looks, rounds_figure
from grandrounds.reporting.figures.runs import (
    budget_figure,
    confusion_figure,
    learning_figure,
    mean_curves,
    method_figure,
    precision_recall_curves,
    precision_recall_figure,
    reliability_figure,
    risk_curve,
    risk_figure,
    roc_curves,
    roc_figure,
    site_figure,
    traffic_figure,
)
from grandrounds.reporting.run import Spent, Traffic, scores_of
from grandrounds.reporting.runs import read_run

from .conftest import CLASSES, SITES


def brightness(colour):
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.fixture
def run(make_run):
    return read_run(make_run(), "x")


def test_no_two_of_20_look_the_same_even_in_grey():
    found = looks([str(number) for number in range(20)])
    assert len({look.colour for look in found.values()}) == len({look[1:] for look in found.values()}) == 20
    first = list(found.values())[:7]
    assert len({look.marker for look in first}) == 7
    for look in found.values():
        alike = [other for other in found.values() if abs(brightness(other.colour) - brightness(look.colour)) < 0.02]
        assert sum((other.marker, str(other.dash)) == (look.marker, str(look.dash)) for other in alike) == 1


def test_a_site_has_its_colour_in_every_figure_whatever_the_other_sites(run):
    sites = ["site-0", *SITES]
    curves = validation_curves(run.log.events, run.log.sites, "balanced_accuracy")
    lines = {line.get_label(): line for line in learning_figure(curves, sites, "balanced_accuracy").axes[0].lines}
    expected = looks(sites)
    assert {site: line.get_color() for site, line in lines.items()} == {site: expected[site].colour for site in SITES}
    tested = {site: group.scores["balanced_accuracy"] for site, group in scores_of(run).sites.items()}
    marks = site_figure({"x": tested}, sites, "balanced_accuracy", {}, 0.25).axes[0].lines
    assert {line.get_color() for line in marks if line.get_marker() != "None" and line.get_xdata().size} <= {
        look.colour for look in expected.values()
    }


def test_curves_are_scikit_learns(run):
    cases = joined(list(run.tests.predictions.values()))
    for name, recalls in precision_recall_curves([cases], CLASSES).items():
        positive, scores = cases.labels == CLASSES.index(name), cases.probabilities[:, CLASSES.index(name)]
        false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
        found = roc_curves([cases], CLASSES)[name]
        assert (found.across.tolist(), found.up.tolist()) == (pytest.approx(false), pytest.approx(true))
        precision, recall, _ = precision_recall_curve(positive, scores)
        # scikit-learn adds the point (0, 1), of no threshold.
        assert recalls.across.tolist() == pytest.approx(recall[:-1][::-1])
        assert recalls.up.tolist() == pytest.approx(precision[:-1][::-1])


def test_drawn_curves_keep_their_ends(run):
    cases = joined(list(run.tests.predictions.values()))
    axes = roc_figure(roc_curves([cases], CLASSES), CLASSES).axes[0]
    drawn = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert set(drawn) == set(CLASSES)
    for line in drawn.values():
        assert (line.get_xdata()[0], line.get_ydata()[0]) == (0, 0)
        assert (line.get_xdata()[-1], line.get_ydata()[-1]) == (1, 1)


def test_a_class_with_too_few_cases_has_no_curve(make_run):
    run = read_run(make_run(counts={"nevus": 20, "melanoma": 12, "other": 3}), "x")
    cases = joined(list(run.tests.predictions.values()))
    assert set(roc_curves([cases], CLASSES)) == set(precision_recall_curves([cases], CLASSES)) == {"nevus", "melanoma"}


def test_nothing_is_drawn_from_nothing():
    few = cases_of(np.zeros(5, np.int64), np.full((5, 2), 0.5))
    assert roc_figure(roc_curves([few], ("a", "b")), ("a", "b")) is None
    assert precision_recall_figure(precision_recall_curves([few], ("a", "b")), ("a", "b")) is None
    assert reliability_figure(few) is None
    assert risk_figure({"x": risk_curve(few)}, ["x"]) is None
    assert learning_figure({}, [], "f1_macro") is None
    assert rounds_figure({"x": {}}, ["x"], "nats", "entropy") is None
    assert traffic_figure({"x": Traffic(0, 0, 0)}) is None


def test_counts_are_written_into_the_confusion_matrix():
    axes = confusion_figure(np.array([[3, 1], [0, 4]]), ("a", "b")).axes[0]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0, 0): "3", (1, 0): "1", (0, 1): "0", (1, 1): "4",
    }  # fmt: skip


def test_a_single_round_has_its_number_and_no_fraction_of_it():
    axes = learning_figure({"site-1": {3: 0.5}}, ["site-1"], "balanced_accuracy").axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [3]


def test_bars_are_megabytes():
    axes = traffic_figure({"x": Traffic(9_000_000, 1_500_000, 6_000_000)}).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([9, 1.5, 6])


def test_a_method_has_its_seeds_its_mean_and_its_interval():
    means = {"a": Score(0.5, 0.4, 0.6, 20), "b": Score(0.7, np.nan, np.nan, 20)}
    axes = method_figure({"a": [0.45, 0.55], "b": [0.7]}, means, "f1_macro", 0.25).axes[0]
    line, mark, seeds = axes.lines[:3]
    assert [text.get_text().strip() for text in axes.texts] == ["chance"]
    assert (line.get_xdata().tolist(), mark.get_xdata().tolist()) == ([0.4, 0.6], [0.5])
    assert seeds.get_xdata().tolist() == [0.45, 0.55]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_a_mean_over_sites_is_of_those_that_have_the_round():
    assert mean_curves({"x": {"a": {1: 0.2, 2: 0.6}, "b": {1: 0.4}}})["x"] == pytest.approx({1: 0.3, 2: 0.6})


def test_a_budget_rises_over_rounds_and_an_infinite_one_is_not_drawn(run):
    spent = Spent("site-2", "patient", 3.2, 1e-5, ((1, 1.5), (2, 3.2)))
    (line,) = budget_figure([spent], SITES).axes[0].lines
    assert (line.get_color(), line.get_ydata().tolist()) == (looks(SITES)["site-2"].colour, [1.5, 3.2])
    assert budget_figure([Spent("site-1", "patient", None, 1e-5, ((1, None),))], SITES) is None


def test_of_more_curves_than_colours_there_are_the_median_a_band_and_the_extremes():
    curves = {f"site-{number}": {1: 0.2, 2: number / 20} for number in range(21)}
    axes = learning_figure(curves, list(curves), "balanced_accuracy", chance=0.25).axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    extremes = [20, 19, 18, 17, 16, 4, 3, 2, 1, 0]
    assert list(drawn) == [*(f"site-{number}" for number in extremes), "median of 21", "chance"]
    assert list(drawn["median of 21"]) == [0.2, 0.5]
    (band,) = axes.collections
    assert sorted({round(float(height), 6) for _, height in band.get_paths()[0].vertices}) == [0.1, 0.2, 0.9]


def test_a_figure_of_many_curves_is_no_larger_than_one_of_a_few(tmp_path):
    sizes = {}
    for count in (25, 200):
        curves = {f"site-{number}": {1: 0.2, 2: number / count} for number in range(count)}
        path = tmp_path / f"{count}.svg"
        learning_figure(curves, list(curves), "balanced_accuracy").savefig(path)
        sizes[count] = path.stat().st_size
    assert sizes[200] < 1.1 * sizes[25] < 100_000


def test_a_few_curves_have_chance_as_a_level():
    few = learning_figure({"site-1": {1: 0.2, 2: 0.3}}, ["site-1"], "balanced_accuracy", chance=0.25).axes[0]
    (level,) = [line for line in few.lines if line.get_label() == "chance"]
    assert level.get_ydata()[0] == 0.25


def test_a_site_has_the_score_of_its_commonest_class_beside_its_own():
    tested = {"site-1": Score(0.6, 0.5, 0.7, 40)}
    axes = site_figure({"x": tested}, ["site-1"], "accuracy", {"site-1": 0.8}, 0.25).axes[0]
    assert [0.8, 0.8] in [list(line.get_xdata()) for line in axes.lines]
