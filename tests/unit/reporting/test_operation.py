"""Thresholds of a report are chosen on validation images of all sites, and shown with what they do on test images."""

from dataclasses import replace

from grandrounds.evaluation.bootstrap import joined
from grandrounds.evaluation.confidence import choose_operating_point
from grandrounds.reporting.model import operating_points, report_on
from grandrounds.reporting.page import render_page
from grandrounds.reporting.runs import read_run

from .conftest import without_probabilities


def test_thresholds_come_from_validation_images_and_scores_from_test_images(make_run):
    run = read_run(make_run(right=0.5), "x")
    validation = read_run(
        make_run("validation", right=1.0, counts={"nevus": 20, "melanoma": 12, "other": 2}), "v"
    ).tests.questions
    run = replace(run, tests=replace(run.tests, validation=validation))
    found = operating_points(run.tests, run.classes)
    assert set(found) == {"nevus", "melanoma"}  # six validation cases of the third are too few
    point, test = found["melanoma"]
    assert point == choose_operating_point(joined([one for (one,) in validation.values()]), 1)
    assert point.sensitivity >= 0.9
    assert test["sensitivity"].value < 0.7  # half of the test images are predicted wrongly
    page = render_page(report_on([run]), [], {})
    assert "Operating points" in page
    assert "none: fewer than 10 validation cases of this class, or of the others" in page


def test_without_validation_images_or_probabilities_there_is_no_threshold(make_run):
    run = read_run(make_run(), "x")
    assert operating_points(run.tests, run.classes) == {}
    counted = replace(without_probabilities(run).tests, validation=run.tests.questions)
    assert operating_points(counted, run.classes) == {}
    assert "Operating points" not in render_page(report_on([run]), [], {})
