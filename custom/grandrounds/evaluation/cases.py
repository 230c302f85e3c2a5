"""Predictions and the independent cases behind them: intervals resample patients or lesions, never images of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.metrics import confusion_matrix

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Cases:
    """What a model said of a place's test images.

    Attributes:
        labels: true classes, int64, shape ``(n,)``.
        predicted: predicted classes, int64, shape ``(n,)``.
        groups: number of the patient or lesion that each image is of, int64, shape ``(n,)``, in [0, cases).
        probabilities: of the classes, float64, shape ``(n, classes)``; None where only the predicted class is known.
        classes: how many classes there are.
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    groups: NDArray[np.int64]
    probabilities: NDArray[np.float64] | None
    classes: int

    @property
    def count(self) -> int:
        """How many independent cases there are."""
        return len(np.unique(self.groups))

    def confusion(self) -> NDArray[np.int64]:
        """Counts of images, shape ``(classes, classes)``: row true class, column predicted class."""
        return confusion_matrix(self.labels, self.predicted, self.classes)

    def positives(self) -> NDArray[np.int64]:
        """How many cases have an image of each class, shape ``(classes,)``."""
        pairs = np.unique(np.stack([self.groups, self.labels], axis=1), axis=0)
        return np.bincount(pairs[:, 1], minlength=self.classes).astype(np.int64)

    def negatives(self) -> NDArray[np.int64]:
        """How many cases have an image of another class than each, shape ``(classes,)``."""
        counts = [len(np.unique(self.groups[self.labels != number])) for number in range(self.classes)]
        return np.array(counts, np.int64)


def cases_of(
    labels: NDArray[np.int64], probabilities: NDArray[np.float64], groups: Sequence[str] | None = None
) -> Cases:
    """Cases from probabilities; of equal ones the lower class is the prediction.

    Args:
        labels: true classes, shape ``(n,)``.
        probabilities: of the classes, shape ``(n, classes)``.
        groups: the patient or lesion of each image; None makes each image a case.

    Raises:
        ValueError: if the lengths differ.
    """
    named = np.arange(len(labels)) if groups is None else np.unique(np.array(groups, np.str_), return_inverse=True)[1]
    if not len(labels) == len(probabilities) == len(named):
        raise ValueError(
            f"expected as many probabilities and groups as labels ({len(labels)}), got {len(probabilities)} and "
            f"{len(named)}"
        )
    predicted = probabilities.argmax(axis=1).astype(np.int64)
    return Cases(labels, predicted, named.astype(np.int64), probabilities, probabilities.shape[1])


def cases_from_confusion(confusion: NDArray[np.int64]) -> Cases:
    """Cases from counts alone, each image a case: all that scores by the predicted class need.

    Example:
        >>> cases_from_confusion(np.array([[1, 0], [2, 0]])).labels
        array([0, 1, 1])
    """
    cells = np.repeat(np.arange(confusion.size), confusion.ravel())
    labels, predicted = np.divmod(cells, len(confusion))
    return Cases(labels, predicted, np.arange(len(cells)), None, len(confusion))


def joined(parts: Sequence[Cases]) -> Cases:
    """The cases of several places together; cases of different places are different.

    Probabilities are None if one place has none.

    Raises:
        ValueError: if there is no place.
    """
    if not parts:
        raise ValueError("there are no places")
    starts = np.cumsum([0, *(1 + int(part.groups.max(initial=-1)) for part in parts[:-1])])
    known = [part.probabilities for part in parts if part.probabilities is not None]
    return Cases(
        labels=np.concatenate([part.labels for part in parts]),
        predicted=np.concatenate([part.predicted for part in parts]),
        groups=np.concatenate([part.groups + start for part, start in zip(parts, starts, strict=True)]),
        probabilities=np.concatenate(known) if len(known) == len(parts) else None,
        classes=parts[0].classes,
    )


def resampled_weights(cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES) -> NDArray[np.float32]:
    """How often each image is in each bootstrap sample of the cases, shape ``(resamples, n)``.

    A bootstrap sample draws as many cases as there are, with replacement; all images of a case come together.

    Raises:
        ValueError: if ``resamples`` is below one.
    """
    counts, index = _draws(cases, generator, resamples)
    return counts[:, index].astype(np.float32)


def resampled_confusions(
    cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Confusion matrices of bootstrap samples of the cases, shape ``(resamples, classes, classes)``.

    Those of several places may be added: each place keeps its number of cases.

    Raises:
        ValueError: if ``resamples`` is below one.
    """
    counts, index = _draws(cases, generator, resamples)
    cells = np.zeros((counts.shape[1], cases.classes**2))
    np.add.at(cells, (index, cases.labels * cases.classes + cases.predicted), 1)
    return (counts @ cells).reshape(resamples, cases.classes, cases.classes)


def _draws(
    cases: Cases, generator: np.random.Generator, resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    require_at_least(resamples, 1, "resamples")
    names, index = np.unique(cases.groups, return_inverse=True)
    if not len(names):
        return np.zeros((resamples, 0)), index
    drawn = generator.integers(0, len(names), size=(resamples, len(names)), dtype=np.int32)
    cells = drawn + np.arange(resamples)[:, None] * len(names)
    counts = np.bincount(cells.ravel(), minlength=resamples * len(names))
    return counts.reshape(resamples, len(names)).astype(np.float64), index
