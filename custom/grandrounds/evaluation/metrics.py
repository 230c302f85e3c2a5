"""Classification metrics from the confusion matrix, in NumPy alone.

A site validates after every round; importing scikit-learn for that would cost it seconds and memory. The definitions
are scikit-learn's, with a precision or F1 of 0/0 counted as zero. A site without a class contributes nothing to the class's
scores: they are NaN there, and means are over the classes (or sites) for which a score is defined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least, require_probabilities
from grandrounds.evaluation.auc import macro_auc
from grandrounds.evaluation.own_metrics import METRICS, own_scores
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

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
SCORES_OF_IMAGES = frozenset({*SELECTABLE, *FROM_CONFUSION, "n", "log_loss"})
"""All that a site reports of its images; no plug-in's metric has one of these names."""


class PrecisionRecallF1(NamedTuple):
    """Precision, recall and F1 of one class with ``n`` true samples; NaN where ``n`` is zero."""

    n: int
    precision: float
    recall: float
    f1: float


def classification_metrics(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> dict[str, float]:
    r"""Metrics of the most probable class, and the cross-entropy.

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        probabilities: predictions (not logits), shape ``(samples, classes)``; rows sum to one. Of equal probabilities
            the lower class is the prediction.

    Returns:
        The metrics of ``metrics_from_confusion``, and ``log_loss``: mean of :math:`-\ln p_{i y_i}`, in nats, with
        probabilities below the resolution of their dtype raised to it, so that no single sample makes it infinite;
        ``log_likelihood``, its negative, which selects a model by its loss; ``auc_macro``, see
        :func:`~grandrounds.evaluation.auc.macro_auc`; and the metrics of plug-ins.
        Without samples only ``n``.

    Raises:
        ValueError: if the shapes do not fit together, a label is no class, or a row is no distribution.

    Example:
        >>> labels, probabilities = np.array([0, 1]), np.array([[0.5, 0.5], [0.5, 0.5]])
        >>> metrics = classification_metrics(labels, probabilities)
        >>> metrics["n"], metrics["accuracy"], round(metrics["log_loss"], 4)  # ln 2
        (2, 0.5, 0.6931)
    """
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            "expected labels (samples,) and probabilities (samples, classes), "
            f"got {labels.shape} and {probabilities.shape}"
        )
    import torch

    require_probabilities(torch.as_tensor(probabilities), "probabilities")
    if not len(labels):
        return {"n": 0}
    confusion = confusion_matrix(labels, probabilities.argmax(axis=1), probabilities.shape[1])
    of_label = probabilities[np.arange(len(labels)), labels]
    floor = np.finfo(probabilities.dtype).eps
    likelihood = float(np.log(np.maximum(of_label, floor), dtype=np.float64).mean())
    more = {"log_loss": -likelihood, "log_likelihood": likelihood, "auc_macro": macro_auc(labels, probabilities)}
    return metrics_from_confusion(confusion) | more | own_scores(labels, probabilities)


def selectable_metrics(task: Task = SINGLE) -> tuple[str, ...]:
    """The metrics by which a model can be selected: the task's own and those of plug-ins.

    Raises:
        ConfigurationError: if a plug-in cannot be imported, or takes a name of the package.
    """
    return task.metrics(tuple(METRICS.all(SCORES_OF_IMAGES)))


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
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(f"labels and predictions must have one length, got {labels.shape} and {predictions.shape}")
    _require_classes(labels, "labels", classes)
    _require_classes(predictions, "predictions", classes)
    cells = labels.astype(np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes).astype(np.int64)


def metrics_from_confusion(confusion: NDArray[np.integer]) -> dict[str, float]:
    r"""Metrics that the confusion matrix determines; matrices of several sites may be added first.

    With :math:`P_c`, :math:`R_c`, :math:`F_c` precision, recall and F1 of class :math:`c`, :math:`n_c` its true
    samples: ``*_weighted`` is :math:`\sum_c n_c (\cdot)_c / n`; ``balanced_accuracy`` and ``f1_macro`` are the plain
    means of :math:`R_c` and :math:`F_c` over the classes with :math:`n_c > 0`. A class that is only predicted costs the
    true class its recall but is not itself averaged: a hospital is not judged on a disease that none of its patients
    has.

    Returns:
        ``n``, ``accuracy``, ``balanced_accuracy``, ``precision_weighted``, ``recall_weighted``, ``f1_weighted`` and
        ``f1_macro``, all but ``n`` in [0, 1]. Without samples only ``n``.

    Raises:
        ValueError: if the matrix is not square or has a negative count.
    """
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(f"confusion must have shape (classes, classes), got {confusion.shape}")
    if (confusion < 0).any():
        raise ValueError("confusion must have no negative count")
    total = int(confusion.sum())
    if not total:
        return {"n": 0}
    scores = confusion_scores(confusion)
    return {"n": total, **{name: float(scores[name]) for name in FROM_CONFUSION}}


def confusion_scores(
    confusions: NDArray[np.number], counted: NDArray[np.bool_] | None = None
) -> dict[str, NDArray[np.float64]]:
    r"""Scores of all classes together, of one or many confusion matrices.

    The definitions are those of :func:`metrics_from_confusion`; beside them is ``precision_macro``, likewise over the
    classes that occur, and ``accuracy_one_vs_rest``, the mean over classes of how often the question "is it this class?" is
    answered correctly: :math:`1 - 2 e / C` with error rate :math:`e`.

    Args:
        confusions: counts, shape ``(..., classes, classes)``: row true class, column predicted class.
        counted: the classes over which means are taken, shape ``(classes,)``; None for all that occur. The two accuracies
            are of all images.

    Returns:
        Arrays of shape ``(...)``; NaN for a matrix without counts.

    Example:
        >>> float(confusion_scores(np.array([[3, 1], [0, 4]]))["balanced_accuracy"])
        0.875
    """
    of_class = confusion_class_scores(confusions)
    true = confusions.sum(axis=-1)
    among = true > 0 if counted is None else counted & (true > 0)
    accuracy = _ratio(np.trace(confusions, axis1=-2, axis2=-1), true.sum(axis=-1))
    known = {name: np.where(among, of_class[name], 0) for name in ("precision", "sensitivity", "f1")}
    total = (true * among).sum(axis=-1)
    weighted = {name: _ratio(_dot(values, true), total) for name, values in known.items()}
    macro = {name: _mean_where(values, among) for name, values in known.items()}
    return {
        "accuracy": accuracy,
        "accuracy_one_vs_rest": 1 - 2 * (1 - accuracy) / confusions.shape[-1],
        "balanced_accuracy": macro["sensitivity"],
        "precision_weighted": weighted["precision"],
        "recall_weighted": weighted["sensitivity"],
        "f1_weighted": weighted["f1"],
        "precision_macro": macro["precision"],
        "f1_macro": macro["f1"],
    }


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
