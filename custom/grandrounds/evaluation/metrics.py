"""Classification metrics from the confusion matrix, in NumPy alone.

A site validates after every round; importing scikit-learn for that would cost it seconds and memory. The definitions
are scikit-learn's, with a precision or F1 of 0/0 counted as zero; see each metric for which classes are averaged.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from grandrounds.checks import require_at_least, require_probabilities
from grandrounds.evaluation.one_vs_rest import macro_auc

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


def classification_metrics(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> dict[str, float]:
    r"""Metrics of the most probable class, and the cross-entropy.

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        probabilities: predictions (not logits), shape ``(samples, classes)``; rows sum to one. Of equal probabilities
            the lower class is the prediction.

    Returns:
        The metrics of ``metrics_from_confusion``, and ``log_loss``: mean of :math:`-\ln p_{i y_i}`, in nats, with
        probabilities below the resolution of their dtype raised to it, so that no single sample makes it infinite;
        ``log_likelihood``, its negative, which selects a model by its loss; and ``auc_macro``, see
        :func:`~grandrounds.evaluation.one_vs_rest.macro_auc`.
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
    require_probabilities(torch.as_tensor(probabilities), "probabilities")
    if not len(labels):
        return {"n": 0}
    confusion = confusion_matrix(labels, probabilities.argmax(axis=1), probabilities.shape[1])
    of_label = probabilities[np.arange(len(labels)), labels]
    floor = np.finfo(probabilities.dtype).eps
    likelihood = float(np.log(np.maximum(of_label, floor), dtype=np.float64).mean())
    more = {"log_loss": -likelihood, "log_likelihood": likelihood, "auc_macro": macro_auc(labels, probabilities)}
    return metrics_from_confusion(confusion) | more


def confusion_matrix(labels: NDArray[np.integer], predictions: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Count how often each class was predicted as each.

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        predictions: predicted classes, likewise.
        classes: how many classes there are, whether or not they occur.

    Returns:
        Counts, shape ``(classes, classes)``, int64: row true class, column predicted class.

    Raises:
        ValueError: if the shapes differ or an entry is no class.

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

    Args:
        confusion: counts, shape ``(classes, classes)``: row true class, column predicted class.

    Returns:
        ``n``, ``accuracy``, ``balanced_accuracy``, ``precision_weighted``, ``recall_weighted``, ``f1_weighted`` and
        ``f1_macro``, all but ``n`` in [0, 1]. Without samples only ``n``.

    Raises:
        ValueError: if the matrix is not square or has a negative count.

    Example:
        >>> metrics_from_confusion(np.array([[3, 1], [0, 4]]))["accuracy"]
        0.875
    """
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(f"confusion must have shape (classes, classes), got {confusion.shape}")
    if (confusion < 0).any():
        raise ValueError("confusion must have no negative count")
    total = int(confusion.sum())
    if not total:
        return {"n": 0}
    correct, true, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    precision, recall = _ratio(correct, predicted), _ratio(correct, true)
    f1 = _ratio(2 * correct, true + predicted)
    occurs = true > 0
    return {
        "n": total,
        "accuracy": float(correct.sum() / total),
        "balanced_accuracy": float(recall[occurs].mean()),
        "precision_weighted": float(precision @ true / total),
        "recall_weighted": float(recall @ true / total),
        "f1_weighted": float(f1 @ true / total),
        "f1_macro": float(f1[occurs].mean()),
    }


def _ratio(numerator: NDArray[np.integer], denominator: NDArray[np.integer]) -> NDArray[np.float64]:
    ratio = np.zeros(len(numerator))
    np.divide(numerator, denominator, out=ratio, where=denominator > 0)
    return ratio


def _require_classes(values: NDArray[np.integer], name: str, classes: int) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must be integers, got {values.dtype}")
    wrong = np.flatnonzero((values < 0) | (values >= classes))
    if len(wrong):
        raise ValueError(f"entry {wrong[0]} of {name} must be in [0, {classes}), got {values[wrong[0]]}")
