"""Counts that leave a site are of several patients, are checked when read, and give curves near those of all images."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import cases_from_confusion, cases_of
from grandrounds.evaluation.curves.binned import (
    CURVE_COUNTS,
    MERGED,
    CurveCounts,
    SiteCurves,
    coarsen_curves,
    curves_shape,
    decode_counts,
    encode_counts,
    read_curves,
    write_curves,
)
from grandrounds.evaluation.curves.points import area_under, precision_recall_points, risk_points, roc_points
from grandrounds.evaluation.curves.summed import sum_counts, sum_curves
from grandrounds.evaluation.tables_of_cases import binned_counts, site_curves
from grandrounds.seeding import numpy_generator

CLASSES = ("nevus", "melanoma", "other")
PAIR = ("nevus", "melanoma")
HALVES = CurveCounts(np.array([0.0, 0.5, 1.0]), np.array([10.0, 30]), np.array([15.0, 0]))
TENTHS = CurveCounts(np.array([0.0, 0.1, 0.3, 1.0]), np.array([0.0, 12, 11]), np.array([40.0, 0, 10]))


def binary(labels, scores, groups=None):
    scores = np.asarray(scores, float)
    return cases_of(np.asarray(labels, np.int64), np.stack([1 - scores, scores], axis=1), groups)


def counted(labels, scores, minimum=10, bins=50, groups=None):
    cases = binary(labels, scores, groups)
    return binned_counts(cases, cases.probabilities[:, 1], cases.labels == 1, minimum, bins)


def scored(name, count=300, shift=0.25):
    generator = numpy_generator("site curves", name)
    labels = (generator.random(count) < 0.4).astype(np.int64)
    return labels, np.clip(0.35 + shift * labels + 0.15 * generator.standard_normal(count), 0, 1)


@settings(max_examples=60)
@given(
    answers=st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=80),
    minimum=st.integers(1, 12),
)
def test_every_count_is_of_at_least_the_minimum_of_patients(answers, minimum):
    labels, scores = [int(label) for label, _ in answers], [score for _, score in answers]
    curve = counted(labels, scores, minimum)
    enough = min(sum(labels), len(labels) - sum(labels)) >= minimum
    assert (curve is not None) == enough
    if curve is not None:
        for counts in (curve.positives, curve.negatives):
            assert all(count == 0 or count >= minimum for count in counts.tolist())
        assert (curve.positives.sum(), curve.negatives.sum()) == (sum(labels), len(labels) - sum(labels))
        assert (curve.edges[0], curve.edges[-1]) == (0, 1)


def test_a_patient_counts_once_with_the_highest_score_on_each_side():
    labels, scores = [1, 1, 0, 0], [0.2, 0.8, 0.9, 0.1]
    curve = counted(labels, scores, 1, 2, ["a", "a", "a", "b"])
    assert curve.positives.tolist() == [0, 1]
    assert curve.negatives.tolist() == [1, 1]


def test_sites_are_added_as_if_scores_were_spread_evenly_within_a_bin():
    one = CurveCounts(np.array([0, 0.2, 0.5, 1.0]), np.array([2.0, 3, 10]), np.array([4.0, 6, 5]))
    other = CurveCounts(np.array([0, 0.5, 0.75, 1.0]), np.array([10.0, 20, 30]), np.array([40.0, 50, 60]))
    both = sum_counts([one, other])
    assert both.edges.tolist() == [0, 0.2, 0.5, 0.75, 1]
    assert both.positives == pytest.approx([2 + 4, 3 + 6, 5 + 20, 5 + 30])
    assert both.negatives == pytest.approx([4 + 16, 6 + 24, 2.5 + 50, 2.5 + 60])


def test_the_servers_area_is_near_that_of_all_images():
    sites = [scored(name) for name in "abc"]
    curve = sum_counts([counted(*site) for site in sites])
    labels, scores = (np.concatenate(part) for part in zip(*sites, strict=True))
    assert area_under(roc_points(curve)) == pytest.approx(roc_auc_score(labels, scores), abs=0.02)


def test_without_merging_the_area_is_that_of_the_bins():
    labels, scores = scored("exact")
    curve = counted(labels, scores, 1, 20)
    expected = roc_auc_score(labels, np.minimum(np.floor(scores * 20), 19))
    assert area_under(roc_points(curve)) == pytest.approx(expected)


def test_precision_and_recall_are_scikit_learns_at_the_boundaries():
    labels, scores = scored("exact")
    points = precision_recall_points(counted(labels, scores, 1, 20))
    lowest = np.unique(np.minimum(np.floor(scores * 20), 19))[::-1]
    predicted = [np.floor(scores * 20).clip(max=19) >= edge for edge in lowest]
    assert set(np.round(points.across, 12)) == {round(recall_score(labels, one), 12) for one in predicted}
    assert set(np.round(points.up, 12)) == {round(precision_score(labels, one), 12) for one in predicted}


def test_risk_over_all_is_the_share_of_wrong_predictions_and_at_half_that_of_the_surer_ones():
    reliability = CurveCounts(np.array([0, 0.5, 0.75, 1.0]), np.array([5.0, 10, 30]), np.array([15.0, 10, 10]))
    found = risk_points(reliability)
    assert found.across == pytest.approx([40 / 80, 60 / 80, 1])
    assert found.up == pytest.approx([10 / 40, 20 / 60, 35 / 80])


def test_counts_alone_give_no_curve_and_wrong_limits_are_refused():
    assert site_curves([cases_from_confusion(np.full((2, 2), 20))], PAIR) == ({}, None)
    with pytest.raises(ValueError, match="minimum must be at least 1"):
        site_curves([binary([0, 1], [0.1, 0.9])], PAIR, minimum=0)
    with pytest.raises(ValueError, match="bins must be at least 1"):
        counted([0, 1], [0.1, 0.9], bins=0)
    with pytest.raises(ValueError, match="there are no counts"):
        sum_counts([])


def test_reliability_counts_correct_and_wrong_predictions_per_bin_of_confidence():
    labels, scores = [1, 1, 0, 0, 1, 1, 0], [0.93, 0.71, 0.93, 0.07, 0.45, 0.89, 0.59]
    # Predicted 1, 1, 1, 0, 0, 1, 1 with confidence 0.93, 0.71, 0.93, 0.93, 0.55, 0.89, 0.59:
    # correct, correct, wrong, correct, wrong, correct, wrong. Bins of the default width 0.02 begin at 0.54, 0.58, 0.70, ...
    found = site_curves([binary(labels, scores)], PAIR, minimum=1).reliability
    starts = found.edges[:-1]
    correct, wrong = (
        {round(float(start), 2): count for start, count in zip(starts, side.tolist(), strict=True) if count}
        for side in (found.positives, found.negatives)
    )
    assert correct == {0.70: 1, 0.88: 1, 0.92: 2}
    assert wrong == {0.54: 1, 0.58: 1, 0.92: 1}


def test_reliability_bins_are_merged_until_each_count_has_enough_patients():
    labels, scores = [1, 1, 0, 0, 1, 1, 0], [0.93, 0.71, 0.93, 0.07, 0.45, 0.89, 0.59]
    # A second wrong prediction is at 0.59; a bin that begins there would leave one wrong prediction alone below it.
    found = site_curves([binary(labels, scores)], PAIR, minimum=2).reliability
    (filled,) = np.flatnonzero(found.positives)
    assert (found.positives[filled], found.negatives[filled], found.negatives.sum()) == (4, 3, 3)
    assert found.edges[filled : filled + 2] == pytest.approx([0.54, 0.94])
    assert site_curves([binary(labels, scores)], PAIR, minimum=4).reliability is None


@pytest.mark.parametrize("bins", [5, 10, 50])
def test_reliability_is_scikit_learns_calibration_curve_of_correctness(bins):
    labels, scores = scored("reliability", 2000)
    cases = binary(labels, scores)
    confidence, correct = np.maximum(scores, 1 - scores), (scores > 0.5) == labels
    found = binned_counts(cases, confidence, correct, minimum=1, bins=bins)
    total = found.positives + found.negatives
    accuracy, _ = calibration_curve(correct, confidence, n_bins=bins, strategy="uniform")
    assert total.sum() == 2000
    assert (found.positives[total > 0] / total[total > 0]).tolist() == pytest.approx(accuracy.tolist())


def flat(value=MERGED):
    return np.full(curves_shape(2), value, np.int64)


def test_a_count_is_at_its_first_bin_and_a_class_that_is_left_out_has_none():
    counts = encode_counts(SiteCurves({"nevus": HALVES}, TENTHS), PAIR)
    expected = flat()
    expected[0, :, 0], expected[0, :, 25] = (10, 15), (30, 0)
    expected[2, :, 0], expected[2, :, 5], expected[2, :, 15] = (0, 40), (12, 0), (11, 10)
    assert counts.tolist() == expected.tolist()


def test_counts_are_decoded_as_they_were_encoded():
    sent = SiteCurves({"melanoma": TENTHS}, HALVES)
    found = decode_counts(encode_counts(sent, PAIR), PAIR, minimum=10)
    assert list(found.classes) == ["melanoma"]
    for came, expected in ((found.classes["melanoma"], TENTHS), (found.reliability, HALVES)):
        assert all(a.tolist() == pytest.approx(b.tolist()) for a, b in zip(came, expected, strict=True))
    assert decode_counts(flat(), PAIR, minimum=10) == ({}, None)


def changed(place, value):
    counts = encode_counts(SiteCurves({"nevus": HALVES}, None), PAIR)
    counts[place] = value
    return counts


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (flat()[:2], r"int64 of shape \(3, 2, 50\), got int64 \(2, 2, 50\)"),
        (flat().astype(np.float64), "got float64"),
        (changed((0, 0, 25), 9), "a count must be 0 or at least 10"),
        (changed((0, 0, 25), -7), "a count must be 0 or at least 10"),
        (changed((0, 0, 25), MERGED), "both sides of a curve must have the same bins"),
        (changed((0, slice(None), 0), MERGED), "the bins must begin at 0"),
        (changed((0, 1, 0), 0), "must have cases on both sides"),
    ],
)
def test_counts_that_no_site_should_send_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        decode_counts(counts, PAIR, minimum=10)


def drawn(name, counts):
    """Predictions that are right in about 70 of 100 cases, two images a patient."""
    generator = numpy_generator("curve release", name)
    labels = np.repeat(np.arange(3), counts)
    probabilities = generator.dirichlet(np.ones(3), len(labels)) * 0.5
    predicted = np.where(generator.random(len(labels)) < 0.7, labels, (labels + 1) % 3)
    probabilities[np.arange(len(labels)), predicted] += 0.5
    return cases_of(labels, probabilities, [f"{number // 2}" for number in range(len(labels))])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "curves_common.json"
    write_curves(path, site_curves([drawn("a", (80, 60, 8))], CLASSES), CLASSES)
    return path


def test_a_file_is_read_as_it_was_written(file):
    found = read_curves(file, CLASSES)
    expected = site_curves([drawn("a", (80, 60, 8))], CLASSES)
    assert found.classes.keys() == expected.classes.keys() != set()
    for name, curve in expected.classes.items():
        assert all(np.allclose(a, b) for a, b in zip(found.classes[name], curve, strict=True))
    assert found.reliability.positives.sum() == expected.reliability.positives.sum()


@pytest.mark.parametrize(
    ("patients", "reported"),
    [
        ((40, 30, 4), {"nevus"}),  # with nevus and melanoma reported, 74 - 40 - 30 would give the four away
        ((40, 30, 0), {"nevus", "melanoma"}),
        ((40, 30, 10), {"nevus", "melanoma", "other"}),
        ((60, 6, 7), {"nevus"}),  # thirteen others together
        ((60, 6, 3), set()),
    ],
)
def test_a_class_of_few_patients_cannot_be_had_by_subtraction(patients, reported):
    cases = drawn("rest", [2 * count for count in patients])
    assert site_curves([cases], CLASSES).classes.keys() == reported


def test_a_greater_minimum_merges_bins_and_leaves_classes_out():
    once = site_curves([drawn("a", (80, 60, 60))], CLASSES)
    found = coarsen_curves(once, 35)
    assert found.classes.keys() == {"nevus"}
    assert found.classes["nevus"].positives.sum() == once.classes["nevus"].positives.sum() == 40
    counts = np.concatenate([found.classes["nevus"].positives, found.classes["nevus"].negatives])
    assert ((counts == 0) | (counts >= 35)).all()


def test_the_file_has_no_image_and_no_count_below_ten(file):
    content = json.loads(file.read_text())
    assert set(content) == {"minimum", "classes", "counts"}
    counts = np.array(content["counts"])
    assert ((counts == MERGED) | (counts == 0) | (counts >= 10)).all()
    assert (counts >= 10).any()


def test_sites_together_have_the_classes_that_any_of_them_has():
    sites = [site_curves([drawn("a", (80, 60, 0))], CLASSES), site_curves([drawn("b", (80, 0, 60))], CLASSES)]
    found = sum_curves(sites, CLASSES)
    assert {name: curve.positives.sum() for name, curve in found.classes.items()} == pytest.approx(
        {"nevus": 80, "melanoma": 30, "other": 30}
    )
    assert sum_curves([], CLASSES) == ({}, None)


def test_bins_of_fewer_than_ten_cases_are_merged_in_the_sum_and_empty_ones_stay():
    """The bins from 0, .2, .5, .6, .8 and .9 have 0, 4 + 4, 12 + 8, 10 + 2, 5 + 3 and 5 + 15 cases.

    From the top: 20 stay, 8 go with the 12 below, 20 go with the 8 below, which would be left, and 0 stay.
    """
    one = CurveCounts(np.array([0, 0.2, 0.5, 0.6, 1]), np.array([0.0, 3, 10, 20]), np.array([0.0, 1, 2, 0]))
    edges = np.array([0, 0.2, 0.5, 0.6, 0.8, 0.9, 1])
    other = CurveCounts(edges, np.array([0.0, 4, 6, 2, 3, 15]), np.array([0.0, 0, 2, 0, 0, 0]))
    found = sum_curves([SiteCurves({}, one), SiteCurves({}, other)], PAIR).reliability
    assert found is not None
    assert found.edges.tolist() == [0, 0.2, 0.6, 0.9, 1]
    assert found.positives == pytest.approx([0, 23, 20, 20])
    assert found.negatives == pytest.approx([0, 5, 0, 0])


def edited(content, place, value):
    counts = np.array(content[CURVE_COUNTS])
    counts[place] = value
    return {**content, CURVE_COUNTS: counts.tolist()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: {**content, "minimum": 1000}, "a count must be 0 or at least 1000"),
        (lambda content: {**content, "classes": ["mole", "other"]}, "of another vocabulary .*, got mole, other"),
        (lambda content: {"minimum": 10}, "is no file of a site's curves"),
        (lambda content: [], "is no file of a site's curves"),
        (lambda content: {**content, CURVE_COUNTS: [[1.5]]}, "counts must be int64 of shape"),
        (lambda content: edited(content, (0, slice(None), 0), MERGED), "the bins must begin at 0"),
        (lambda content: edited(content, (0, 1), MERGED), "both sides of a curve must have the same bins"),
    ],
)
def test_damage_of_a_file_is_named(file, change, message):
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(DataError, match=message):
        read_curves(file, CLASSES)


def test_a_file_that_was_cut_is_named(file):
    file.write_text(file.read_text()[:50])
    with pytest.raises(DataError, match=r"curves_common\.json is no file of a site's curves"):
        read_curves(file, CLASSES)
