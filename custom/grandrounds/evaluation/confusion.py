"""Confusion matrices, those of constant answers, and the scores that they determine, in NumPy alone.

A site validates after every round; importing scikit-learn for that would cost it seconds and memory. The definitions
are scikit-learn's, with a precision or F1 of 0/0 counted as zero. A site without a class contributes nothing to the class's
scores: they are NaN there, and means are over the classes (or sites) for which a score is defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least

MEANS = {
    "balanced_accuracy": ("sensitivity", False),
    "recall_weighted": ("sensitivity", True),
    "precision_macro": ("precision", False),
    "precision_weighted": ("precision", True),
    "f1_macro": ("f1", False),
    "f1_weighted": ("f1", True),
}
"""Means over classes: of which score, and whether weighted by the classes' images."""


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


@dataclass(frozen=True, eq=False)
class Margins:
    """What scores need of one or many confusion matrices, each of shape ``(..., classes)``.

    Attributes:
        correct: the diagonal.
        true: samples of each class, the sums of rows.
        predicted: predictions of each class, the sums of columns.
    """

    correct: NDArray[np.number]
    true: NDArray[np.number]
    predicted: NDArray[np.number]

    def __add__(self, other: Margins) -> Margins:
        """Those of the sums of both matrices."""
        return Margins(self.correct + other.correct, self.true + other.true, self.predicted + other.predicted)


def margins_of(confusions: NDArray[np.number] | Margins) -> Margins:
    """The margins of matrices of shape ``(..., classes, classes)``: row true class, column predicted class."""
    if isinstance(confusions, Margins):
        return confusions
    correct = np.diagonal(confusions, axis1=-2, axis2=-1)
    return Margins(correct, confusions.sum(axis=-1), confusions.sum(axis=-2))


def confusion_scores(
    confusions: NDArray[np.number] | Margins, scored: Sequence[int] | None = None
) -> dict[str, NDArray[np.float64]]:
    r"""Scores of all classes together, of one or many confusion matrices.

    With :math:`P_c`, :math:`R_c`, :math:`F_c` precision, recall and F1 of class :math:`c`, :math:`n_c` its true
    samples: ``*_weighted`` is :math:`\sum_c n_c (\cdot)_c / n`; ``balanced_accuracy``, ``precision_macro`` and ``f1_macro``
    are the plain means over the classes with :math:`n_c > 0`. A class that is only predicted costs the true class its recall
    but is not itself averaged: a hospital is not judged on a disease that none of its patients has. ``accuracy_one_vs_rest``
    is the mean over classes of how often the question "is it this class?" is answered correctly: :math:`1 - 2 e / C` with
    error rate :math:`e`.

    Args:
        confusions: counts, shape ``(..., classes, classes)``: row true class, column predicted class; or their margins.
        scored: the classes over which means of precision and F1 are taken; None for all.

    Returns:
        Arrays of shape ``(...)``; NaN for a matrix without counts.

    Example:
        >>> float(confusion_scores(np.array([[3, 1], [0, 4]]))["balanced_accuracy"])
        0.875
    """
    margins = margins_of(confusions)
    of_class, true = confusion_class_scores(margins), margins.true
    accuracy = _ratio(margins.correct.sum(axis=-1), true.sum(axis=-1))
    among = true > 0
    chosen = np.isin(np.arange(true.shape[-1]), scored) if scored is not None else np.ones(true.shape[-1], np.bool_)
    scores = {"accuracy": accuracy, "accuracy_one_vs_rest": 1 - 2 * (1 - accuracy) / true.shape[-1]}
    for name, (score, weighted) in MEANS.items():
        classes = among if score == "sensitivity" else among & chosen
        values = np.where(classes, of_class[score], 0)
        weights = (true * classes).sum(axis=-1)
        scores[name] = _ratio(_dot(values, true), weights) if weighted else _mean_where(values, classes)
    return scores


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


def confusion_class_scores(confusions: NDArray[np.number] | Margins) -> dict[str, NDArray[np.float64]]:
    """Scores of each class against the others, of one or many confusion matrices or their margins.

    Returns:
        ``precision`` (zero for a class that occurs and is never predicted), ``sensitivity``, ``f1`` and ``specificity``,
        shape ``(..., classes)``; NaN without samples of the class, for specificity without others.

    Example:
        >>> confusion_class_scores(np.array([[3, 1], [0, 4]]))["specificity"]
        array([1.  , 0.75])
    """
    margins = margins_of(confusions)
    correct, true, predicted = margins.correct, margins.true, margins.predicted
    total = true.sum(axis=-1, keepdims=True)
    occurs = true > 0
    precision = np.where(occurs, np.nan_to_num(_ratio(correct, predicted)), np.nan)
    return {
        "precision": precision,
        "sensitivity": _ratio(correct, true),
        "f1": np.where(occurs, _ratio(2 * correct, true + predicted), np.nan),
        "specificity": _ratio(total - true - predicted + correct, total - true),
    }


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
