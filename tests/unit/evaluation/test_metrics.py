"""Metrics without scikit-learn are those of scikit-learn."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

import grandrounds
from grandrounds.evaluation.confusion import confusion_matrix, confusion_scores
from grandrounds.evaluation.metrics import FROM_CONFUSION, site_metrics
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import numpy_generator

LABELS, PREDICTIONS = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


def softmax_rows(purpose, samples, classes, dtype=np.float64):
    exponentials = np.exp(numpy_generator(purpose).normal(scale=2, size=(samples, classes)))
    return (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(dtype)


def test_hand_computed_four_samples():
    metrics = confusion_scores(confusion_matrix(LABELS, PREDICTIONS, classes=3))
    assert metrics["accuracy"] == 0.5
    assert metrics["balanced_accuracy"] == 0.5
    assert metrics["precision_weighted"] == pytest.approx(0.58333, abs=5e-6)
    assert metrics["recall_weighted"] == 0.5
    assert metrics["f1_weighted"] == pytest.approx(0.45833, abs=5e-6)
    assert metrics["f1_macro"] == pytest.approx(0.38889, abs=5e-6)


@settings(max_examples=50)
@given(pairs=PAIRS)
def test_agrees_with_scikit_learn(pairs):
    labels, predictions = np.array(pairs).T
    confusion = confusion_matrix(labels, predictions, classes=5)
    metrics = confusion_scores(confusion)
    weighted = sklearn.metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(5), average="weighted", zero_division=0
    )
    np.testing.assert_array_equal(confusion, sklearn.metrics.confusion_matrix(labels, predictions, labels=range(5)))
    assert [metrics[f"{name}_weighted"] for name in ("precision", "recall", "f1")] == pytest.approx(weighted[:3])
    assert metrics["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(labels, predictions))
    # Recall of the classes that occur; a prediction of another class is no reason for a warning here.
    assert metrics["balanced_accuracy"] == pytest.approx(
        sklearn.metrics.recall_score(labels, predictions, labels=np.unique(labels), average="macro", zero_division=0)
    )
    assert metrics["f1_macro"] == pytest.approx(
        sklearn.metrics.f1_score(labels, predictions, labels=np.unique(labels), average="macro", zero_division=0)
    )


def test_a_class_that_is_only_predicted_is_not_averaged():
    metrics = confusion_scores(confusion_matrix(np.array([0, 0]), np.array([0, 2]), classes=3))
    assert metrics["f1_macro"] == pytest.approx(2 / 3)  # with class 2 it would be 1/3
    assert metrics["balanced_accuracy"] == 0.5


def test_the_matrix_has_true_classes_in_rows_and_every_class_of_the_task():
    matrix = confusion_matrix(LABELS, PREDICTIONS, classes=4)
    assert matrix.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert matrix.dtype == np.int64


def test_small_integer_labels_do_not_overflow():
    many = np.full(3, 19, dtype=np.uint8)  # 19 * 20 + 19 is no uint8
    assert confusion_matrix(many, many, classes=20)[19, 19] == 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics_of_probabilities_are_of_their_argmax_with_the_mean_cross_entropy(dtype):
    probabilities = softmax_rows("metrics", 50, 4, dtype)
    labels = numpy_generator("labels").integers(0, 3, size=50)
    metrics = site_metrics(SINGLE, labels, probabilities)
    log_loss, auc = metrics.pop("log_loss"), metrics.pop("auc_macro")
    assert metrics.pop("log_likelihood") == -log_loss
    expected = confusion_scores(confusion_matrix(labels, probabilities.argmax(axis=1), 4))
    assert metrics == {"n": 50, **{name: expected[name] for name in FROM_CONFUSION}}
    assert log_loss == pytest.approx(sklearn.metrics.log_loss(labels, probabilities, labels=range(4)), rel=1e-6)
    areas = [sklearn.metrics.roc_auc_score(labels == c, probabilities[:, c]) for c in range(3)]
    assert auc == pytest.approx(np.mean(areas)), "the fourth class has no sample"


def test_one_impossible_sample_does_not_make_the_loss_infinite():
    probabilities = np.array([[0.0, 1.0]])
    loss = site_metrics(SINGLE, np.array([0]), probabilities)["log_loss"]
    assert loss == pytest.approx(sklearn.metrics.log_loss([0], probabilities, labels=[0, 1]))
    assert loss == pytest.approx(36.04, abs=0.01)


@given(order=st.permutations(range(12)))
def test_the_order_of_samples_does_not_matter(order):
    probabilities, labels = softmax_rows("order", 12, 3), np.arange(12) % 3
    assert site_metrics(SINGLE, labels[order], probabilities[order]) == pytest.approx(
        site_metrics(SINGLE, labels, probabilities)
    )


def test_no_samples_give_no_metric_that_looks_like_a_result():
    assert site_metrics(SINGLE, np.zeros(0, dtype=np.int64), np.zeros((0, 3))) == {"n": 0}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], r"expected labels \(images,\) and probabilities \(images, classes\), got \(3,\) and \(2, 2\)"),
        ([0, 2], r"entry 1 of labels must be in \[0, 2\), got 2"),
        ([0.0, 1.0], "labels must be integers, got float64"),
    ],
)
def test_refuses_labels_that_are_no_classes(labels, message):
    with pytest.raises(ValueError, match=message):
        site_metrics(SINGLE, np.array(labels), np.full((2, 2), 0.5))


def test_refuses_logits():
    with pytest.raises(ValueError, match="row 0 of probabilities sums to 3"):
        site_metrics(SINGLE, np.array([0]), np.array([[1.0, 2.0]]))


def test_refuses_predictions_of_another_length_and_a_task_without_classes():
    with pytest.raises(ValueError, match=r"must have one length, got \(4,\) and \(3,\)"):
        confusion_matrix(LABELS, PREDICTIONS[:3], classes=3)
    with pytest.raises(ValueError, match=r"entry 1 of predictions must be in \[0, 3\), got 3"):
        confusion_matrix(LABELS[:2], np.array([0, 3]), classes=3)
    with pytest.raises(ValueError, match=r"classes .*got 0"):
        confusion_matrix(LABELS, PREDICTIONS, classes=0)


def test_validation_does_not_load_scikit_learn():
    code = (
        "import sys, numpy as np; from grandrounds.evaluation.metrics import site_metrics; "
        "from grandrounds.protocol.tasks import SINGLE; site_metrics(SINGLE, np.array([0]), np.array([[1.0, 0.0]])); "
        "sys.exit('sklearn' in sys.modules)"
    )
    root = Path(grandrounds.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=600).returncode == 0
