"""Predictions of test images, grouped by the independent cases (patients or lesions) that the images are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.metrics import confusion_matrix


@dataclass(frozen=True, eq=False)
class Cases:
    """Predictions for the test images of one or more sites.

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
    """Cases from counts alone, each image a case: enough for scores of the predicted class.

    Example:
        >>> cases_from_confusion(np.array([[1, 0], [2, 0]])).labels
        array([0, 1, 1])
    """
    cells = np.repeat(np.arange(confusion.size), confusion.ravel())
    labels, predicted = np.divmod(cells, len(confusion))
    return Cases(labels, predicted, np.arange(len(cells)), None, len(confusion))


def joined(parts: Sequence[Cases]) -> Cases:
    """The cases of several sites together; cases of different sites are different.

    Probabilities are None if one site has none.

    Raises:
        ValueError: if there is no site.
    """
    if not parts:
        raise ValueError("there are no sites")
    starts = np.cumsum([0, *(1 + int(part.groups.max(initial=-1)) for part in parts[:-1])])
    known = [part.probabilities for part in parts if part.probabilities is not None]
    return Cases(
        labels=np.concatenate([part.labels for part in parts]),
        predicted=np.concatenate([part.predicted for part in parts]),
        groups=np.concatenate([part.groups + start for part, start in zip(parts, starts, strict=True)]),
        probabilities=np.concatenate(known) if len(known) == len(parts) else None,
        classes=parts[0].classes,
    )
