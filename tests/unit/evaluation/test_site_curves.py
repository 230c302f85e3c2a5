"""What leaves a site stands for several patients, and the server's curve is near the one of all images."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from grandrounds.evaluation.cases import cases_from_confusion, cases_of
from grandrounds.evaluation.curves import (
    SiteCurve,
    area,
    precision_recall_points,
    reliability_curve,
    risk_points,
    roc_points,
    site_curve,
    summed_curves,
)
from grandrounds.seeding import numpy_generator


def binary(labels, scores, groups=None):
    scores = np.asarray(scores, float)
    return cases_of(np.asarray(labels, np.int64), np.stack([1 - scores, scores], axis=1), groups)


def drawn(name, count=300, shift=0.25):
    generator = numpy_generator("site curves", name)
    labels = (generator.random(count) < 0.4).astype(np.int64)
    return labels, np.clip(0.35 + shift * labels + 0.15 * generator.standard_normal(count), 0, 1)


@settings(max_examples=60, deadline=None)
@given(
    answers=st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=80),
    least=st.integers(1, 12),
)
def test_no_count_stands_for_fewer_than_the_least(answers, least):
    labels, scores = [int(label) for label, _ in answers], [score for _, score in answers]
    curve = site_curve(binary(labels, scores), 1, least)
    enough = min(sum(labels), len(labels) - sum(labels)) >= least
    assert (curve is not None) == enough
    if curve is not None:
        for counts in (curve.positives, curve.negatives):
            assert all(count == 0 or count >= least for count in counts.tolist())
        assert (curve.positives.sum(), curve.negatives.sum()) == (sum(labels), len(labels) - sum(labels))
        assert (curve.edges[0], curve.edges[-1]) == (0, 1)


def test_a_patient_counts_once_with_the_highest_score_on_each_side():
    labels, scores = [1, 1, 0, 0], [0.2, 0.8, 0.9, 0.1]
    curve = site_curve(binary(labels, scores, ["a", "a", "a", "b"]), 1, least=1, ranges=2)
    assert curve.positives.tolist() == [0, 1]
    assert curve.negatives.tolist() == [1, 1]


def test_sites_are_added_as_if_scores_were_spread_evenly_within_a_range():
    one = SiteCurve(np.array([0, 0.2, 0.5, 1.0]), np.array([2.0, 3, 10]), np.array([4.0, 6, 5]))
    other = SiteCurve(np.array([0, 0.5, 0.75, 1.0]), np.array([10.0, 20, 30]), np.array([40.0, 50, 60]))
    both = summed_curves([one, other])
    assert both.edges.tolist() == [0, 0.2, 0.5, 0.75, 1]
    assert both.positives == pytest.approx([2 + 4, 3 + 6, 5 + 20, 5 + 30])
    assert both.negatives == pytest.approx([4 + 16, 6 + 24, 2.5 + 50, 2.5 + 60])


def test_the_servers_area_is_near_that_of_all_images():
    sites = [drawn(name) for name in "abc"]
    curve = summed_curves([site_curve(binary(*site), 1) for site in sites])
    labels, scores = (np.concatenate(part) for part in zip(*sites, strict=True))
    assert area(roc_points(curve)) == pytest.approx(roc_auc_score(labels, scores), abs=0.02)


def test_without_merging_the_area_is_that_of_the_ranges():
    labels, scores = drawn("exact")
    curve = site_curve(binary(labels, scores), 1, least=1, ranges=20)
    expected = roc_auc_score(labels, np.minimum(np.floor(scores * 20), 19))
    assert area(roc_points(curve)) == pytest.approx(expected)


def test_precision_and_recall_are_scikit_learns_at_the_boundaries():
    labels, scores = drawn("exact")
    points = precision_recall_points(site_curve(binary(labels, scores), 1, least=1, ranges=20))
    places = np.unique(np.minimum(np.floor(scores * 20), 19))[::-1]
    predicted = [np.floor(scores * 20).clip(max=19) >= place for place in places]
    assert set(np.round(points.recall, 12)) == {round(recall_score(labels, one), 12) for one in predicted}
    assert set(np.round(points.precision, 12)) == {round(precision_score(labels, one), 12) for one in predicted}


def test_risk_over_all_is_the_share_of_wrong_predictions_and_at_half_that_of_the_surer_ones():
    sureness = SiteCurve(np.array([0, 0.5, 0.75, 1.0]), np.array([5.0, 10, 30]), np.array([15.0, 10, 10]))
    found = risk_points(sureness)
    assert found.coverage == pytest.approx([40 / 80, 60 / 80, 1])
    assert found.risk == pytest.approx([10 / 40, 20 / 60, 35 / 80])


def test_counts_alone_give_no_curve_and_wrong_limits_are_refused():
    assert site_curve(cases_from_confusion(np.full((2, 2), 20)), 1) is None
    with pytest.raises(ValueError, match="least must be at least 1"):
        site_curve(binary([0, 1], [0.1, 0.9]), 1, least=0)
    with pytest.raises(ValueError, match="there are no curves"):
        summed_curves([])


def test_reliability_counts_right_and_wrong_predictions_by_confidence():
    labels, scores = [1, 1, 0, 0, 1], [0.9, 0.7, 0.9, 0.1, 0.45]
    # Predicted 1, 1, 1, 0, 0 with confidence 0.9, 0.7, 0.9, 0.9, 0.55: right, right, wrong, right, wrong.
    curve = reliability_curve(binary(labels, scores), least=1, ranges=5)
    assert curve.edges[-3:] == pytest.approx([0.6, 0.8, 1])
    assert curve.positives[-2:].tolist() == [1, 2]
    assert curve.negatives[-1] == 1
    assert (curve.positives.sum(), curve.negatives.sum()) == (3, 2)
    assert reliability_curve(binary(labels, scores), least=3) is None
