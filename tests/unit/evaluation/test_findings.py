"""Scores of findings against hand-computed numbers and scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from grandrounds.evaluation.bootstrap import questions_of
from grandrounds.evaluation.counts import HIDDEN, SiteCounts, check_counts
from grandrounds.evaluation.curves.binned import MINIMUM, decode_counts, encode_counts
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.tables_of_cases import site_counts, site_curves
from grandrounds.protocol.tasks import FINDINGS

GENERATOR = np.random.default_rng(3)
LABELS = (GENERATOR.random((120, 3)) < [0.5, 0.3, 0.04]).astype(np.int64)
PROBABILITIES = np.clip(0.3 * LABELS + GENERATOR.random((120, 3)) * 0.7, 0, 1)
UNKNOWN = np.where(GENERATOR.random((120, 3)) < 0.2, -1, LABELS)


def test_means_are_over_the_findings_with_images_on_both_sides():
    absent = LABELS * [1, 1, 0]
    found = site_metrics(FINDINGS, absent, PROBABILITIES)
    columns = [(LABELS[:, n], PROBABILITIES[:, n]) for n in range(2)]
    assert found["auc_macro"] == pytest.approx(np.mean([roc_auc_score(y, p) for y, p in columns]))
    assert found["balanced_accuracy"] == pytest.approx(
        np.mean([balanced_accuracy_score(y, p >= 0.5) for y, p in columns])
    )
    assert found["f1_macro"] == pytest.approx(np.mean([f1_score(y, p >= 0.5) for y, p in columns]))
    assert found["n"] == 120


def test_unknown_answers_do_not_count():
    found = site_metrics(FINDINGS, np.array([[1, -1], [-1, 0]]), np.array([[0.8, 0.0], [0.0, 0.4]]))
    assert found == {
        "n": 2,
        "log_loss": pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2),
        "log_likelihood": -found["log_loss"],
    }
    assert site_metrics(FINDINGS, np.empty((0, 2), np.int64), np.zeros((0, 0))) == {"n": 0}


def test_counts_are_of_each_finding_and_add_up_over_sites():
    groups = [f"p{number // 2}" for number in range(120)]
    cases = questions_of(FINDINGS, UNKNOWN, PROBABILITIES, groups)
    counts = site_counts(cases)
    called, known = PROBABILITIES[:, 0] >= 0.5, UNKNOWN[:, 0]
    assert counts.images[0, 1].tolist() == [
        int((called & (known == 1)).sum()),
        int((~called & (known == 1)).sum()),
        int((called & (known == 0)).sum()),
    ]
    check_counts(counts.images, counts.patients, (3, 2, 3))
    record = EvalRecord(FINDINGS, ("a", "b", "c"), 120, counts=(counts,))
    whole = pooled([record, record]).classes
    truth = known >= 0
    assert whole[0]["balanced_accuracy"].value == pytest.approx(balanced_accuracy_score(known[truth], called[truth]))
    assert whole[0]["f1"].value == pytest.approx(f1_score(known[truth], called[truth]))


def test_a_finding_that_is_hidden_has_no_score_and_the_others_have():
    whole = site_counts(questions_of(FINDINGS, LABELS, PROBABILITIES))
    counts = SiteCounts(whole.images.copy(), whole.patients.copy())
    counts.images[2] = counts.patients[2] = HIDDEN
    record = EvalRecord(FINDINGS, ("a", "b", "c"), 120, counts=(counts,))
    assert not any(score.known for score in record.classes[2].values())
    assert record.score("balanced_accuracy").reason == "of few cases and hidden: c"
    assert record.scores["balanced_accuracy_of_2_classes"].value == pytest.approx(
        np.mean([balanced_accuracy_score(LABELS[:, n], PROBABILITIES[:, n] >= 0.5) for n in range(2)])
    )


def test_curves_are_of_single_findings_and_survive_a_message():
    curves = site_curves(questions_of(FINDINGS, LABELS, PROBABILITIES), ("a", "b", "c"))
    again = decode_counts(encode_counts(curves, ("a", "b", "c")), ("a", "b", "c"), MINIMUM)
    assert list(again.classes) == ["a", "b"]
    assert again.reliability is None
    assert again.classes["a"].positives.sum() == LABELS[:, 0].sum()


def test_intervals_contain_the_mean_and_widen_with_the_images_of_a_patient():
    single = questions_of(FINDINGS, LABELS[:, :2], PROBABILITIES[:, :2])
    repeated = questions_of(
        FINDINGS,
        *(np.repeat(part[:, :2], 3, axis=0) for part in (LABELS, PROBABILITIES)),
        np.repeat(np.arange(120), 3).astype(str),
    )
    found = []
    for cases in (single, repeated):
        found.append(EvalRecord.of(FINDINGS, ("a", "b"), cases).score("auc_macro"))
    assert found[0].value == pytest.approx(site_metrics(FINDINGS, LABELS[:, :2], PROBABILITIES[:, :2])["auc_macro"])
    assert found[0].low < found[0].value < found[0].high
    assert found[1].high - found[1].low == pytest.approx(found[0].high - found[0].low, rel=0.1), "patients, not images"
