"""Scores agree with scikit-learn, leave out classes of few cases, and their intervals cover as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from grandrounds.evaluation.bootstrap import Cases, cases_from_confusion, cases_of
from grandrounds.evaluation.estimates import (
    auc_estimates,
    class_correlations,
    class_estimates,
    counts_of,
    macro_auroc,
    mean_over,
    reference_scores,
    score_estimates,
)
from grandrounds.evaluation.score import Score, no_score
from grandrounds.seeding import numpy_generator

CLASSES = ("nv", "mel", "df")


def estimates(cases, resamples=200):
    return score_estimates(counts_of(cases), class_correlations(cases, numpy_generator("test"), resamples))


def drawn(draw):
    """Predictions of images of patients, some classes missing or rare."""
    classes = draw(st.integers(2, 4))
    images = draw(st.integers(2, 60))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = generator.choice(classes, images, p=generator.dirichlet(np.full(classes, 0.6)))
    probabilities = generator.dirichlet(np.full(classes, 0.5), images)
    probabilities = 0.5 * probabilities + 0.5 * np.eye(classes)[np.where(generator.random(images) < 0.6, labels, 0)]
    return cases_of(labels, probabilities, [str(g) for g in generator.integers(0, draw(st.integers(1, 60)), images)])


@settings(max_examples=60)
@given(cases=st.composite(drawn)())
def test_every_interval_contains_its_estimate(cases):
    counts, areas = counts_of(cases), auc_estimates(cases)
    macro = macro_auroc(cases, areas, numpy_generator("macro"))
    found = [*estimates(cases, 30).values(), macro]
    found += [estimate for row in [*class_estimates(counts), *areas] for estimate in row.values()]
    for estimate in found:
        if not math.isnan(estimate.value):
            assert estimate.low <= estimate.value + 1e-9
            assert estimate.value <= estimate.high + 1e-9


def test_scores_are_scikit_learns():
    cases = cases_from_confusion(np.array([[30, 6, 4], [5, 12, 3], [2, 2, 11]]))
    found = estimates(cases)
    true, called = cases.labels, cases.predicted
    for average in ("macro", "weighted"):
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(true, called, average=average)
        assert found[f"precision_{average}"].value == pytest.approx(precision)
        assert found[f"f1_{average}"].value == pytest.approx(f1)
        assert found["balanced_accuracy" if average == "macro" else "recall_weighted"].value == pytest.approx(recall)
    assert found["accuracy"].value == pytest.approx(metrics.accuracy_score(true, called))
    assert (found["accuracy"].cases, found["f1_macro"].cases) == (75, 15)
    of_class = class_estimates(counts_of(cases))
    assert of_class[1]["specificity"].value == pytest.approx(47 / 55)
    assert of_class[1]["sensitivity"][:3] == pytest.approx((0.6, 0.386582, 0.781193), abs=1e-5)


def test_a_class_of_few_cases_is_in_every_mean_and_the_score_is_marked():
    cases = cases_from_confusion(np.array([[92, 8, 0], [0, 1, 0], [10, 0, 10]]))
    found = estimates(cases)
    assert found["balanced_accuracy"].value == pytest.approx(
        metrics.balanced_accuracy_score(cases.labels, cases.predicted)
    )
    assert found["f1_weighted"].value == pytest.approx(
        metrics.f1_score(cases.labels, cases.predicted, average="weighted")
    )
    assert (found["balanced_accuracy"].cases, found["balanced_accuracy"].few, found["accuracy"].few) == (1, True, False)


def test_a_mean_over_some_classes_says_so():
    cases = cases_from_confusion(np.array([[90, 4, 0], [1, 3, 0], [0, 0, 12]]))
    shown = score_estimates(counts_of(cases), among=np.array([True, False, True]))
    assert shown["balanced_accuracy"].value == pytest.approx((90 / 94 + 1) / 2)


def test_intervals_are_of_patients():
    labels, predicted = np.repeat([0, 1], 100), np.repeat([0, 1, 1, 0], [70, 30, 70, 30])
    widths = []
    for images_each in (1, 10):
        cases = Cases(labels, predicted, np.arange(200) // images_each, None, 2)
        found = estimates(cases)
        widths.append([found[name].high - found[name].low for name in ("accuracy", "balanced_accuracy", "f1_macro")])
    assert widths[1][0] > 2.5 * widths[0][0]  # nearly sqrt(10)
    assert min(widths[1][1:]) > 2 * max(widths[0][1:])


def test_a_mean_over_sites_has_the_interval_of_independent_parts_and_names_what_it_lacks():
    many, other = (Score(0.5, 0.4, 0.6, 80), Score(0.7, 0.6, 0.8, 90))
    found = mean_over([{"accuracy": many}, {"accuracy": other}], "sites")["accuracy"]
    assert found.value == pytest.approx(0.6)
    assert (found.low, found.high) == pytest.approx((0.6 - math.sqrt(0.005), 0.6 + math.sqrt(0.005)))
    assert (found.cases, found.of) == (80, "")
    found = mean_over([{"accuracy": many}, {"accuracy": no_score("kept")}, {"accuracy": other}], "sites")["accuracy"]
    assert (found.value, found.of) == (pytest.approx(0.6), "2 of 3 sites")
    assert mean_over([{"accuracy": no_score("kept")}], "sites")["accuracy"].reason == "kept"


def test_references_are_scikit_learns_of_constant_predictions():
    cases = cases_from_confusion(np.array([[50, 10, 0], [10, 10, 0], [15, 2, 3]]))
    found = reference_scores(counts_of(cases), CLASSES)
    constant = np.zeros(100, np.int64)
    assert found["always nv"]["accuracy"] == pytest.approx(metrics.accuracy_score(cases.labels, constant))
    assert found["always nv"]["balanced_accuracy"] == pytest.approx(1 / 3)
    assert found["always nv"]["f1_macro"] == pytest.approx(
        metrics.f1_score(cases.labels, constant, average="macro", zero_division=0)
    )
    assert found["chance"]["accuracy"] == found["chance"]["balanced_accuracy"] == pytest.approx(1 / 3)
    guesses = [
        metrics.f1_score(cases.labels, np.random.default_rng(seed).integers(0, 3, 100), average="weighted")
        for seed in range(400)
    ]
    assert found["chance"]["f1_weighted"] == pytest.approx(np.mean(guesses), abs=0.01)


ROWS = {
    "weak": ([200, 12, 15, 10], [[0.9, 0.05, 0.03, 0.02], [0.7, 0.3, 0, 0], [0.7, 0, 0.3, 0], [0.6, 0, 0.2, 0.2]]),
    "fair": ([60, 40, 20, 12], [[0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.2, 0.2, 0.5, 0.1], [0.2, 0.1, 0.1, 0.6]]),
    "good": ([100, 12, 10], [[0.95, 0.03, 0.02], [0.1, 0.88, 0.02], [0.05, 0.05, 0.9]]),
}  # fmt: skip
COVERED = (0.92, 0.98)


@pytest.mark.parametrize("name", ROWS)
def test_intervals_of_rare_classes_cover_as_often_as_they_say(name):
    sizes, rows = np.array(ROWS[name][0]), np.array(ROWS[name][1])
    counts = rows * sizes[:, None]
    correct, called = np.diag(counts), counts.sum(axis=0)
    truth = {
        "balanced_accuracy": np.diag(rows).mean(),
        "f1_macro": (2 * correct / (sizes + called)).mean(),
        "precision_weighted": (correct / called) @ sizes / sizes.sum(),
        "sensitivity": rows[-1, -1],
        "f1": (2 * correct / (sizes + called))[-1],
    }
    generator, covered = numpy_generator("coverage", name), dict.fromkeys(truth, 0)
    repeats = 500
    for _ in range(repeats):
        cases = cases_from_confusion(np.stack([generator.multinomial(n, p) for n, p in zip(sizes, rows, strict=True)]))
        found = {**estimates(cases, 100), **class_estimates(counts_of(cases))[-1]}
        for score, value in truth.items():
            covered[score] += found[score].low <= value <= found[score].high
    shares = {score: count / repeats for score, count in covered.items()}
    assert all(COVERED[0] <= share for share in shares.values()), shares
    # The denominators of precision and F1 vary between samples, which the fixed class sizes make narrower: conservative.
    exact = [share for score, share in shares.items() if score not in ("precision_weighted", "f1")]
    assert max(exact) <= COVERED[1], shares


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_intervals_of_patients_with_several_images_cover_as_often_as_they_say(share):
    generator, covered, repeats = numpy_generator("patients", str(share)), 0, 600
    for _ in range(repeats):
        sizes = generator.integers(1, 5, 30)
        chances = generator.beta(2 * share, 2 * (1 - share), 30)  # images of a patient agree more than by chance
        groups = np.repeat(np.arange(30), sizes)
        right = generator.random(len(groups)) < chances[groups]
        cases = Cases(np.zeros(len(groups), np.int64), (~right).astype(np.int64), groups, None, 2)
        found = class_estimates(counts_of(cases))[0]["sensitivity"]
        covered += found.low <= share <= found.high
    assert COVERED[0] <= covered / repeats <= COVERED[1], covered / repeats


@pytest.mark.parametrize("area", [0.6, 0.75, 0.9])
def test_intervals_of_areas_of_ten_positive_images_cover_as_often_as_they_say(area):
    from scipy.stats import norm

    generator, covered, repeats = numpy_generator("area", str(area)), 0, 600
    labels = np.repeat([0, 1], [200, 10])
    for _ in range(repeats):
        scores = norm.cdf(generator.normal(size=210) + labels * norm.ppf(area) * math.sqrt(2))
        found = auc_estimates(cases_of(labels, np.stack([1 - scores, scores], axis=1)))[1]["auroc"]
        covered += found.low <= area <= found.high
    assert COVERED[0] <= covered / repeats <= COVERED[1], covered / repeats
