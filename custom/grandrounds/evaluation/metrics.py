"""Classification metrics from the confusion matrix, in NumPy alone.

A site validates after every round; importing scikit-learn for that would cost it seconds and memory. The definitions
are scikit-learn's, with a precision or F1 of 0/0 counted as zero. A site without a class contributes nothing to the class's
scores: they are NaN there, and means are over the classes (or sites) for which a score is defined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.auc import macro_auc
from grandrounds.evaluation.own_metrics import OWN_METRICS, own_scores
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

if TYPE_CHECKING:
    from grandrounds.protocol.task import Task

SELECTABLE = (
    "accuracy",
    "auc_macro",
    "balanced_accuracy",
    "f1_macro",
    "f1_weighted",
    "log_likelihood",
    "precision_weighted",
    "recall_weighted",
)
"""The metrics by which a model can be selected: higher is better."""
FROM_CONFUSION = (
    "accuracy",
    "balanced_accuracy",
    "precision_weighted",
    "recall_weighted",
    "f1_weighted",
    "f1_macro",
)
"""The metrics that a site computes from its confusion matrix after every round."""
LINEAR_SCORES = ("accuracy", "recall_weighted", "log_likelihood")
"""Metrics whose value for several sites together is their mean weighted by the sites' numbers of images."""
OF_CLASSES = frozenset(FROM_CONFUSION) - {*LINEAR_SCORES}
"""Metrics that the counts of single classes determine, and which determine a count that is hidden beside them."""
MEANS = {
    "balanced_accuracy": ("sensitivity", False),
    "recall_weighted": ("sensitivity", True),
    "precision_macro": ("precision", False),
    "precision_weighted": ("precision", True),
    "f1_macro": ("f1", False),
    "f1_weighted": ("f1", True),
}
"""Means over classes: of which score, and whether weighted by the classes' images."""
SCORES_OF_IMAGES = frozenset({*SELECTABLE, *FROM_CONFUSION, "n", "log_loss"})
"""All that a site reports of its images; no plug-in's metric has one of these names."""


class PrecisionRecallF1(NamedTuple):
    """Precision, recall and F1 of one class with ``n`` true samples; NaN where ``n`` is zero."""

    n: int
    precision: float
    recall: float
    f1: float


def site_metrics(task: Task, labels: NDArray[np.int64], probabilities: NDArray[np.floating]) -> dict[str, float]:
    r"""What a site reports of a model on its images.

    Args:
        task: of the labels.
        labels: of ``n`` images; unknown ones do not count.
        probabilities: predictions (not logits), shape ``(n, classes)``.

    Returns:
        ``n``, the images of which something is known; ``log_loss``: mean of :math:`-\ln p` of the known answers, in nats,
        with probabilities below the resolution of their dtype raised to it, so that no single sample makes it infinite, and
        ``log_likelihood``, its negative, which selects a model by its loss. The task's other metrics are means over its
        questions, of which each has at least ``task.min_images`` images of each of its classes: those of
        :func:`confusion_scores`, and ``auc_macro``, see :func:`~grandrounds.evaluation.auc.macro_auc`. Where classes
        are exclusive, also the metrics of plug-ins. The area of images of one class alone is not defined and left out.
        Without known images only ``n``.

    Raises:
        ValueError: if the shapes do not fit together, a label is no class, or a probability is none.

    Example:
        >>> from grandrounds.protocol.tasks import task_named
        >>> labels, probabilities = np.array([0, 1]), np.array([[0.5, 0.5], [0.5, 0.5]])
        >>> metrics = site_metrics(task_named("single"), labels, probabilities)
        >>> metrics["n"], metrics["accuracy"], round(metrics["log_loss"], 4)  # ln 2
        (2, 0.5, 0.6931)
    """
    known, questions = task.known(labels), task.questions(labels, probabilities)
    if not known.any():
        return {"n": 0}
    found = []
    for one in questions:
        confusion = confusion_matrix(one.labels, one.predicted, one.probabilities.shape[1])
        if confusion.sum(axis=1).min() >= task.min_images:
            scores = confusion_scores(confusion, scored=one.scored)
            found.append({**scores, "auc_macro": macro_auc(one.labels, one.probabilities, one.scored)})
    floor = np.finfo(probabilities.dtype).eps
    answered = task.answered(labels, probabilities)
    likelihood = float(np.log(np.maximum(answered, floor), dtype=np.float64).mean())
    metrics = {"n": int(known.sum()), "log_loss": -likelihood, "log_likelihood": likelihood}
    means = {
        name: float(np.mean([one[name] for one in found])) for name in task.selectable if found and name in found[0]
    }
    means = {name: value for name, value in means.items() if not math.isnan(value)}
    own = (
        own_scores(labels[known], probabilities[known]) if set(OWN_METRICS.all()) & {*selectable_metrics(task)} else {}
    )
    return metrics | means | own


def selectable_metrics(task: Task = SINGLE) -> tuple[str, ...]:
    """The metrics by which a model can be selected: the task's own and those of plug-ins.

    Raises:
        ConfigurationError: if a plug-in cannot be imported, or takes a name of the package.
    """
    return task.metrics(tuple(OWN_METRICS.all(SCORES_OF_IMAGES)))


def confusion_matrix(labels: NDArray[np.integer], predictions: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Count how often each class was predicted as each, int64, shape ``(classes, classes)``: row true, column predicted.

    Raises:
        ValueError: if the shapes differ or an entry is no integer in [0, classes).

    Example:
        >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), classes=2)
        array([[1, 1],
               [0, 1]])
    """
    require_at_least(classes, 1, "classes")
    if not labels.shape == predictions.shape == (labels.size,):
        raise ValueError(f"labels and predictions must have one length, got {labels.shape} and {predictions.shape}")
    _require_classes(labels, "labels", classes)
    _require_classes(predictions, "predictions", classes)
    cells = labels.astype(np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes).astype(np.int64)


def confusion_scores(
    confusions: NDArray[np.number],
    counted: NDArray[np.bool_] | None = None,
    scored: Sequence[int] | None = None,
) -> dict[str, NDArray[np.float64]]:
    r"""Scores of all classes together, of one or many confusion matrices.

    With :math:`P_c`, :math:`R_c`, :math:`F_c` precision, recall and F1 of class :math:`c`, :math:`n_c` its true
    samples: ``*_weighted`` is :math:`\sum_c n_c (\cdot)_c / n`; ``balanced_accuracy``, ``precision_macro`` and ``f1_macro``
    are the plain means over the classes with :math:`n_c > 0`. A class that is only predicted costs the true class its recall
    but is not itself averaged: a hospital is not judged on a disease that none of its patients has. ``accuracy_one_vs_rest``
    is the mean over classes of how often the question "is it this class?" is answered correctly: :math:`1 - 2 e / C` with
    error rate :math:`e`.

    Args:
        confusions: counts, shape ``(..., classes, classes)``: row true class, column predicted class.
        counted: the classes over which means are taken, shape ``(classes,)``; None for all that occur. The two accuracies
            are of all images.
        scored: the classes over which means of precision and F1 are taken; None for all.

    Returns:
        Arrays of shape ``(...)``; NaN for a matrix without counts.

    Example:
        >>> float(confusion_scores(np.array([[3, 1], [0, 4]]))["balanced_accuracy"])
        0.875
    """
    of_class = confusion_class_scores(confusions)
    true = confusions.sum(axis=-1)
    accuracy = _ratio(np.trace(confusions, axis1=-2, axis2=-1), true.sum(axis=-1))
    among = true > 0 if counted is None else counted & (true > 0)
    chosen = np.isin(np.arange(true.shape[-1]), scored) if scored is not None else np.ones(true.shape[-1], np.bool_)
    found = {"accuracy": accuracy, "accuracy_one_vs_rest": 1 - 2 * (1 - accuracy) / confusions.shape[-1]}
    for name, (score, weighted) in MEANS.items():
        classes = among if score == "sensitivity" else among & chosen
        values = np.where(classes, of_class[score], 0)
        weights = (true * classes).sum(axis=-1)
        found[name] = _ratio(_dot(values, true), weights) if weighted else _mean_where(values, classes)
    return found


def majority_confusion(true: NDArray[np.number]) -> NDArray[np.float64]:
    """The confusion matrix of a model that always predicts the most frequent class, from images of each class.

    Example:
        >>> float(confusion_scores(majority_confusion(np.array([6, 2])))["accuracy"])
        0.75
    """
    confusion = np.zeros((len(true), len(true)))
    confusion[:, int(np.argmax(true))] = true
    return confusion


def chance_confusion(true: NDArray[np.number]) -> NDArray[np.float64]:
    """The expected confusion matrix of guessing, every class with equal probability.

    Example:
        >>> float(confusion_scores(chance_confusion(np.array([6, 2])))["balanced_accuracy"])
        0.5
    """
    return np.repeat(np.asarray(true, np.float64)[:, None] / len(true), len(true), axis=1)


def confusion_class_scores(confusions: NDArray[np.number]) -> dict[str, NDArray[np.float64]]:
    """Scores of each class against the others, of one or many confusion matrices.

    Returns:
        ``precision`` (zero for a class that occurs and is never predicted), ``sensitivity``, ``f1`` and ``specificity``,
        shape ``(..., classes)``; NaN without samples of the class, for specificity without others.

    Example:
        >>> confusion_class_scores(np.array([[3, 1], [0, 4]]))["specificity"]
        array([1.  , 0.75])
    """
    correct = np.diagonal(confusions, axis1=-2, axis2=-1)
    true, predicted = confusions.sum(axis=-1), confusions.sum(axis=-2)
    total = true.sum(axis=-1, keepdims=True)
    occurs = true > 0
    precision = np.where(occurs, np.nan_to_num(_ratio(correct, predicted)), np.nan)
    return {
        "precision": precision,
        "sensitivity": _ratio(correct, true),
        "f1": np.where(occurs, _ratio(2 * correct, true + predicted), np.nan),
        "specificity": _ratio(total - true - predicted + correct, total - true),
    }


def precision_recall_f1(confusion: NDArray[np.integer]) -> list[PrecisionRecallF1]:
    r"""Precision, recall and F1 of each class.

    .. math:: P_c = \frac{m_{cc}}{\sum_i m_{ic}}, \qquad R_c = \frac{m_{cc}}{\sum_j m_{cj}}, \qquad
        F_c = \frac{2 m_{cc}}{\sum_i m_{ic} + \sum_j m_{cj}}

    Example:
        >>> precision_recall_f1(np.array([[3, 1], [0, 0]]))[0]
        PrecisionRecallF1(n=4, precision=1.0, recall=0.75, f1=0.8571428571428571)
    """
    scores = confusion_class_scores(confusion)
    columns = (confusion.sum(axis=1), scores["precision"], scores["sensitivity"], scores["f1"])
    return [PrecisionRecallF1(*entry) for entry in zip(*(column.tolist() for column in columns), strict=True)]


def mean_of_known(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN where there is none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _dot(values: NDArray[np.float64], counts: NDArray[np.number]) -> NDArray[np.float64]:
    """Sum over classes of value times count, for each matrix."""
    products: NDArray[np.float64] = np.matmul(values[..., None, :], counts[..., :, None].astype(np.float64))
    return products[..., 0, 0]


def _mean_where(values: NDArray[np.float64], occurs: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the classes that occur; NaN where none does."""
    if values.ndim == 1 and occurs.any():
        # Adding zeros could change the order of the sum and so the last digit of a score by which models are selected.
        return np.asarray(values[occurs].mean())
    return _ratio(values.sum(axis=-1), occurs.sum(axis=-1))


def _ratio(numerator: NDArray[np.number], denominator: NDArray[np.number]) -> NDArray[np.float64]:
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    ratio = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=ratio, where=bottom > 0)
    return ratio


def _require_classes(values: NDArray[np.integer], name: str, classes: int) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must be integers, got {values.dtype}")
    wrong = np.flatnonzero((values < 0) | (values >= classes))
    if len(wrong):
        raise ValueError(f"entry {wrong[0]} of {name} must be in [0, {classes}), got {values[wrong[0]]}")
