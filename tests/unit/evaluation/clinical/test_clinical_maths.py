"""Predictive values, calibration, net benefit and subgroups against hand-computed numbers and other libraries."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.linear_model import LogisticRegression

from grandrounds.evaluation.bootstrap import cases_of
from grandrounds.evaluation.clinical.binary import binary_cases
from grandrounds.evaluation.clinical.recalibration import (
    calibration_line,
    calibration_of,
    fit_recalibration,
    logit,
)
from grandrounds.evaluation.clinical.subgroups import subgroups_of
from grandrounds.evaluation.clinical.suppression import shown_counts, suppressed, without_small_counts
from grandrounds.evaluation.clinical.thresholds import (
    decision_curve,
    net_benefit,
    point_of_cases,
    point_of_counts,
    predictive_estimates,
    predictive_values,
)
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.score import Score
from grandrounds.seeding import numpy_generator

FRACTIONS = st.floats(0, 1)


def binary(positive, scores, groups=None):
    scores = np.asarray(scores, np.float64)
    probabilities = np.stack([1 - scores, scores], axis=1)
    return cases_of(np.asarray(positive, np.int64), probabilities, groups)


def drawn(seed, size, intercept=0.0, slope=1.0):
    """Risks, and outcomes whose log odds are ``intercept + slope * logit(risk)``."""
    generator = np.random.default_rng(seed)
    scores = 1 / (1 + np.exp(-generator.normal(-1, 1.5, size)))
    true = 1 / (1 + np.exp(-(intercept + slope * logit(scores))))
    return generator.random(size) < true, scores


def test_a_positive_group_sums_its_classes():
    probabilities = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    found = binary_cases(cases_of(np.array([2, 1]), probabilities), [0, 2])
    assert found.probabilities[:, 1] == pytest.approx([0.5, 0.9])
    assert found.labels.tolist() == [1, 0]
    assert found.predicted.tolist() == [1, 1]


@pytest.mark.parametrize("group", [[], [0, 1, 2]])
def test_a_positive_group_is_some_of_the_classes(group):
    with pytest.raises(ValueError, match="some of 3 classes"):
        binary_cases(cases_of(np.array([0]), np.array([[0.2, 0.5, 0.3]])), group)


def test_predictive_values_of_a_table_of_counts():
    # 1000 people, 10 ill: 9 of them and 99 healthy ones are called positive.
    ppv, npv = predictive_values(0.9, 0.9, 0.01)
    assert ppv == pytest.approx(9 / (9 + 99))
    assert npv == pytest.approx(891 / (891 + 1))


@given(FRACTIONS, FRACTIONS, st.integers(10, 400), st.integers(10, 400), st.floats(0.001, 0.999))
def test_every_interval_of_a_predictive_value_contains_its_estimate(sensitivity, specificity, ill, healthy, prevalence):
    estimates = Score(sensitivity, 0, 1, ill), Score(specificity, 0, 1, healthy)
    for found in predictive_estimates(*estimates, prevalence):
        if not math.isnan(found.value):
            assert 0 <= found.low <= found.value <= found.high <= 1


def test_nominal_intervals_of_a_predictive_value_cover_it():
    generator, truth = numpy_generator("coverage"), predictive_values(0.8, 0.9, 0.05)
    hits = np.zeros(2)
    for _ in range(1000):
        s, c = generator.binomial(40, 0.8) / 40, generator.binomial(200, 0.9) / 200
        found = predictive_estimates(Score(s, 0, 1, 40), Score(c, 0, 1, 200), 0.05)
        hits += [one.low <= value <= one.high for one, value in zip(found, truth, strict=True)]
    assert (hits / 1000 > 0.92).all(), hits
    assert (hits / 1000 < 0.99).all(), hits


def test_slope_and_intercept_are_those_of_logistic_regression():
    positive, scores = drawn(1, 4000, intercept=0.5, slope=0.7)
    found = calibration_of(binary(positive, scores), numpy_generator("test"))
    oracle = LogisticRegression(C=np.inf, tol=1e-10).fit(logit(scores)[:, None], positive)
    assert found.slope.value == pytest.approx(oracle.coef_[0, 0], abs=1e-4)
    # With the slope fixed at one, the sum of the shifted risks is the number of positive images.
    shifted = 1 / (1 + np.exp(-(logit(scores) + found.intercept.value)))
    assert shifted.sum() == pytest.approx(positive.sum(), abs=1e-6)
    assert found.brier.value == pytest.approx(np.mean((scores - positive) ** 2))


def test_intervals_of_slope_and_intercept_cover_the_truth():
    hits = np.zeros(2)
    for seed in range(300):
        slope, intercept = calibration_line(binary(*drawn(seed, 400))).values()
        hits += [slope.low <= 1 <= slope.high, intercept.low <= 0 <= intercept.high]
    assert (hits / 300 > 0.92).all(), hits
    assert (hits / 300 < 0.98).all(), hits


def test_images_of_one_patient_are_one_case_for_the_interval():
    positive, scores = drawn(3, 300)
    once = calibration_of(binary(positive, scores), numpy_generator("test"))
    groups = [str(number) for number in range(300)] * 3
    copied = calibration_of(binary(np.tile(positive, 3), np.tile(scores, 3), groups), numpy_generator("test"))
    for name in ("slope", "intercept"):
        one, three = getattr(once, name), getattr(copied, name)
        assert three.value == pytest.approx(one.value)
        assert three.high - three.low == pytest.approx(one.high - one.low, rel=1e-6)


@settings(max_examples=40)
@given(arrays.arrays(np.float64, 30, elements=FRACTIONS), arrays.arrays(np.bool_, 30))
def test_every_interval_of_calibration_contains_its_estimate(scores, positive):
    if 0 < positive.sum() < 30:
        for name, found in vars(calibration_of(binary(positive, scores), numpy_generator("test"))).items():
            assert math.isnan(found.value) or found.low <= found.value <= found.high, name


@pytest.mark.parametrize("low", [0.1, 0.4, 0.499, 1e-3])
@pytest.mark.parametrize("side", [1, -1], ids=["right", "reversed"])
@pytest.mark.parametrize("touching", [False, True])
def test_separable_classes_have_no_slope_and_an_intercept(low, side, touching):
    scores = np.concatenate([np.linspace(low, 0.49, 10), np.linspace(0.51, 1 - low, 10)])
    if touching:
        scores[9] = scores[10] = 0.5
    cases = binary([0] * 10 + [1] * 10, scores[::side])
    found = calibration_of(cases, numpy_generator("test"))
    assert math.isnan(found.slope.value)
    assert math.isnan(found.slope.low)
    assert fit_recalibration(cases) is None
    # Symmetric scores: at slope one as many are expected as there are, without a shift.
    assert found.intercept.value == pytest.approx(0, abs=1e-6)


def test_one_overlapping_pair_gives_a_slope():
    positive = np.array([0] * 10 + [1] * 10, bool)
    scores = np.linspace(0.1, 0.9, 20)
    scores[[9, 10]] = scores[[10, 9]]
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10000).fit(logit(scores)[:, None], positive)
    assert calibration_line(binary(positive, scores))["slope"].value == pytest.approx(oracle.coef_[0, 0], rel=1e-3)


def test_risks_that_are_too_high_and_too_low_do_not_cancel_in_a_calibration_error_of_forty_images():
    scores = np.repeat([0.98, 0.97, 0.02, 0.01], 10)
    positive = np.tile([True, False], 20)
    assert calibration_of(binary(positive, scores), numpy_generator("calibration")).ece.value > 0.4


def test_recalibration_undoes_a_known_distortion():
    positive, scores = drawn(5, 20000)
    distorted = 1 / (1 + np.exp(-2 * (logit(scores) - 0.5)))
    correction = fit_recalibration(binary(positive, distorted))
    assert (correction.temperature, correction.intercept) == pytest.approx((2, 0.5), abs=0.1)
    assert np.abs(correction.apply(distorted) - scores).max() < 0.02


def test_net_benefit_by_hand():
    # Threshold 0.25: a false positive costs a third. Called: 0.3 (ill), 0.5 (healthy), 0.9 (ill).
    found = net_benefit(np.array([1, 0, 0, 1], bool), np.array([0.3, 0.5, 0.1, 0.9]), np.array([0.25]))
    assert found[0, 0] == pytest.approx(2 / 4 - 1 / 4 / 3)


def test_a_decision_curve_is_that_of_calling_all_where_all_are_above_the_threshold():
    positive, scores = drawn(7, 300)
    found = decision_curve(binary(positive, 0.7 + 0.3 * scores), numpy_generator("test"))
    assert found.model == pytest.approx(found.treat_all)
    assert found.useful == []
    prevalence = positive.mean()
    odds = found.thresholds / (1 - found.thresholds)
    assert found.treat_all == pytest.approx(prevalence - (1 - prevalence) * odds)
    assert ((found.low <= found.model) & (found.model <= found.high)).all()


def test_an_operating_point_of_predictions_reaches_the_sensitivity_and_no_more_than_it_must():
    positive, scores = drawn(9, 500)
    point = point_of_cases(binary(positive, scores), "validation", 0.8)
    assert (scores[positive] >= point.threshold).mean() == point.sensitivity >= 0.8
    assert (scores[positive] > point.threshold).mean() < 0.8
    assert (scores[~positive] < point.threshold).mean() == point.specificity
    assert point_of_cases(binary(positive[:9], scores[:9]), "validation") is None


def test_an_operating_point_of_counts_is_an_edge():
    counts = CurveCounts(np.array([0, 0.2, 0.6, 1.0]), np.array([10, 20, 70]), np.array([80, 20, 10]))
    point = point_of_counts(counts, "counts", 0.9)
    assert (point.threshold, point.sensitivity) == (0.2, 0.9)
    assert point.specificity == pytest.approx(80 / 110)
    assert point_of_counts(counts._replace(positives=np.array([0, 0, 9])), "counts") is None


def test_numbers_are_cut_at_their_quartiles_and_texts_are_groups():
    found = subgroups_of({"age": [str(n) for n in range(1, 41)], "name": [f"p{n}" for n in range(40)], "k": ["a"] * 40})
    assert [(group.value, len(group.rows)) for group in found] == [
        ("up to 10.75", 10),
        ("above 10.75 to 20.5", 10),
        ("above 20.5 to 30.25", 10),
        ("above 30.25", 10),
    ]


@given(
    arrays.arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.integers(0, 30)),
    st.integers(2, 12),
)
def test_no_hidden_count_follows_by_subtraction(counts, minimum):
    hidden = suppressed(counts, minimum)
    assert hidden[(counts > 0) & (counts < minimum)].all()
    assert not hidden[counts == 0].any()
    for table, mask in ((counts, hidden), (counts.T, hidden.T)):
        for row, hides in zip(table, mask, strict=True):
            if hides.any() and ((row > 0) & ~hides).any():
                assert hides.sum() > 1
                assert row[hides].sum() >= minimum


def test_counts_beside_their_sum():
    assert shown_counts({"a": 5, "b": 0, "c": 50, "d": 70}, 10) == {"a": None, "b": 0, "c": None, "d": 70}
    assert shown_counts({"a": 5, "b": 6, "c": 50}, 10) == {"a": None, "b": None, "c": 50}
    assert shown_counts({"a": 5, "b": 6}, 1) == {"a": 5, "b": 6}
    cases = {"a": 9, "b": 60, "c": 30}
    assert shown_counts({"a": 50, "b": 60, "c": 70}, 10, cases) == {"a": None, "b": 60, "c": None}


def test_counts_of_plain_values_are_left_out_by_their_name():
    content = {"sites": [{"n": 3, "value": 3}], "cases": 9, "images": 10}
    assert without_small_counts(content, 10) == {"sites": [{"n": None, "value": 3}], "cases": None, "images": 10}


def test_an_undefined_slope_is_said_and_not_taken_for_calibration():
    found = calibration_of(binary([0] * 10 + [1] * 10, np.linspace(0.1, 0.9, 20)), numpy_generator("test"))
    assert found.finding.startswith("The slope is not defined")
